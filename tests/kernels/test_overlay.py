"""Overlay files: read strictly, refused where they are stale, and served above the built-in entries."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch

from edgeflow.config.service import ServiceConfig
from edgeflow.engine import placement
from edgeflow.jetson import read_board
from edgeflow.kernels.table import overlay
from edgeflow.kernels.table.implementations import Hardware
from edgeflow.kernels.table.operator_table import OperatorKey, built_in_table
from edgeflow.kernels.table.overlay import (
    Overlay,
    current_stamp,
    load_entries,
    read_overlay,
    tune_options,
)
from edgeflow.lab.tuning.operators import write_overlay
from edgeflow_client.errors import ConfigError
from tests.jetson_trees import ORIN, write_tree

CPU = torch.device("cpu")
HARDWARE = Hardware("cpu")


def written(path, **changes):
    path.write_text(json.dumps({"entries": [{"op_name": "swiglu", "impl_id": "reference"}]} | changes))
    return path


def test_a_file_written_by_hand_serves_everywhere(tmp_path):
    path = written(tmp_path / "mine.json")
    table = built_in_table().overlaid(*load_entries(path, CPU, torch.float32))
    chosen = table.choose(OperatorKey(op_name="swiglu"), HARDWARE, torch.float32)
    assert (chosen.implementation.impl_id, chosen.reason) == ("reference", "mine.json: everywhere")


@pytest.mark.parametrize("field", ["device", "driver", "torch", "triton", "flashinfer", "dtype", "edgeflow"])
def test_a_stale_stamp_is_rejected_with_what_to_run(tmp_path, field):
    stamp = current_stamp(CPU, torch.float32)
    path = tmp_path / "tuned.json"
    write_overlay(path, Overlay(stamp=stamp))
    assert load_entries(path, CPU, torch.float32) == []
    write_overlay(path, Overlay(stamp=stamp.model_copy(update={field: "other"})))
    with pytest.raises(
        ConfigError,
        match=rf"tuned with {field} other, here .* "
        r"`edgeflow tune --model '/a b' --device cpu --dtype float32 --threads 1 --out FILE`$",
    ):
        load_entries(path, CPU, torch.float32, tuned_for=tune_options("/a b"))


@pytest.mark.usefixtures("one_thread_around")
def test_torch_takes_the_threads_of_a_file_that_a_service_with_others_rejects(tmp_path):
    path = tmp_path / "tuned.json"
    write_overlay(path, Overlay(stamp=current_stamp(CPU, torch.float32, threads=2)))
    told = r"tuned with threads 2, here it is 1: .* --dtype float32 --threads 1 --out FILE`$"
    with pytest.raises(ConfigError, match=told):
        load_entries(path, CPU, torch.float32, threads=1)
    assert torch.get_num_threads() == 1
    load_entries(path, CPU, torch.float32)
    assert torch.get_num_threads() == 2


def test_an_overlay_of_another_power_mode_serves_and_is_marked(tmp_path, monkeypatch):
    root = write_tree(tmp_path / "orin", ORIN)
    for module in (overlay, placement):
        monkeypatch.setattr(module, "read_board", lambda: read_board(root))
    path = tmp_path / "tuned.json"
    write_overlay(path, Overlay(stamp=current_stamp(CPU, torch.float32)))
    assert placement.power_line(path) == ""
    write_tree(root, {"var/lib/nvpmodel/status": "pmode:0002"})
    assert load_entries(path, CPU, torch.float32) == []
    said = "tuned.json was tuned in another power mode (power_mode 0 MAXN, now 2 MODE_30W): its choices may be slow"
    assert said in placement.operators_line(ServiceConfig(operators=str(path)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "the file: Invalid JSON"),
        ('{"format": 2}', "format: Input should be 1"),
        ('{"entries": [{"op_name": "swiglu"}]}', "entries.0.impl_id: Field required"),
        ('{"entries": [{"op_name": "swiglu", "impl_id": "x", "color": 1}]}', "entries.0.color: Extra inputs"),
        ('{"entries": [{"impl_id": "x", "stage": "late"}]}', "entries.0.stage: Input should be"),
        ('{"entries": [{"impl_id": "x", "weight": "int7"}]}', "entries.0.weight: Input should be"),
        ('{"entries": [{"impl_id": "x", "shape_sig": "big"}]}', "entries.0.shape_sig: Value error, 'big': no size has"),
        ('{"entries": [{"impl_id": "x", "layer_role": "qvk"}]}', "entries.0.layer_role: Value error, 'qvk' is not the"),
        ('{"entries": [{"impl_id": "x", "op_kind": "gemm"}]}', "entries.0.op_kind: Value error, 'gemm' is not a kind"),
        (
            '{"entries": [{"impl_id": "x", "kv": "fp3"}]}',
            "entries.0.kv: Value error, 'fp3' is not a KV format",
        ),
        ('{"entries": [{"impl_id": "x", "impl_params": {"block": "a"}}]}', "entries.0.impl_params.block: Input"),
    ],
)
def test_a_wrong_file_says_where(tmp_path, content, said):
    path = tmp_path / "wrong.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=re.escape(f"wrong.json: {said}")):
        read_overlay(path)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        read_overlay(tmp_path / "none.json")


def test_unknown_implementations_are_rejected(tmp_path):
    path = written(tmp_path / "mine.json", entries=[{"op_name": "swiglu", "impl_id": "fastest"}])
    with pytest.raises(ConfigError, match="operator swiglu: no implementation 'fastest'"):
        built_in_table().overlaid(*load_entries(path, CPU, torch.float32))


PAPER = {
    "model_name": "qwen2_5",
    "hw_profile": "cuda_sm80",
    "op_kind": "linear",
    "layer_role": "fused_qkv",
    "op_name": "",
    "stage": "decode",
    "shape_sig": "m=1|in_features=1536|...",
    "impl_id": "cublasLt",
    "impl_params": {"algo_index": 0},
}
"""The example of EdgeFM's table 1, letter by letter."""


@pytest.mark.parametrize("signature", [PAPER["shape_sig"], "m=1|in_features=1536|out_features=2048"])
def test_the_papers_row_is_matched_by_its_call_and_the_next_best_serves(tmp_path, signature):
    path = written(tmp_path / "paper.json", entries=[PAPER | {"shape_sig": signature}])
    table = built_in_table().overlaid(*load_entries(path, CPU, torch.float32))
    call = OperatorKey(
        op_name="linear",
        model_name="qwen2",
        hw_profile="",
        op_kind="",
        layer_role="qkv",
        stage="decode",
        shape_sig="m=1|n=2048|e=1536",
    )
    chosen = table.choose(call, Hardware("cuda", 80), torch.bfloat16)
    assert chosen.implementation.impl_id == "gemm"
    assert chosen.passed_over == ("cublasLt: edgeflow has no binding of cuBLASLt",)
    others = [
        replace(call, **other)
        for other in (
            {"model_name": "llama"},
            {"layer_role": "output"},
            {"stage": "prefill"},
            {"shape_sig": "m=2|n=2048|e=1536"},
            {"shape_sig": "m=1|n=2048|e=1537"},
        )
    ]
    for other in [*others, replace(call, hw_profile="cuda_sm87")]:
        assert table.choose(other, Hardware("cuda", 80), torch.bfloat16).passed_over == ()
