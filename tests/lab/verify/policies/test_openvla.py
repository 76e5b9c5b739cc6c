"""`edgeflow verify`: passes on recorded truth, fails on each wrong quantity."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.contract import Pace
from edgeflow.lab.demo.training import network
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.lab.verify.checkpoint import verify_checkpoint
from edgeflow.lab.verify.comparison import exact_float32
from edgeflow.lab.verify.policies.openvla import verify_bundle
from edgeflow_client.errors import CheckpointError, ConfigError
from edgeflow_client.types import Mode
from tests.engine.emulated_device import OTHER, other_device
from tests.oracles import ORACLES
from tests.tiny_checkpoint import TinySize, write_checkpoint

CPU = torch.device("cpu")
SERIAL = Pace(1)


@pytest.mark.oracle("openvla-tiny")
def test_the_original_implementation_agrees_at_every_pace_that_auto_may_choose():
    results = verify_checkpoint(ORACLES / "openvla-tiny", [Mode.AUTO], lambda *_: None)
    assert [result for _, result in results if not result.ok] == []
    assert {pace for pace, _ in results} == {"serial", "depth 2", "depth 3", "depth 4", "pipelined", "speculative"}
    assert {result.quantity for _, result in results} == {
        "input ids", "pixel values", "dino patches", "siglip patches", "projected", "final hidden",
        "prefill logits", "step logits", "action tokens", "normalized actions", "actions",
        "pixel values, letterbox", "pixel values, resize-crop",
    }  # fmt: skip
    assert len({result.case for _, result in results}) == 3


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A bundle recorded by the training network, which shares no code with the served model."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("recorded")
    size = TinySize()
    write_checkpoint(directory, size)
    tower = network.TowerDimensions(
        img_size=size.side, patch_size=size.patch, depth=size.depth, embed_dim=size.tower, num_heads=size.tower_heads
    )
    plain = network.PolicyNetwork(
        network.NetworkSize(
            towers=(tower, tower),
            hidden=size.hidden,
            layers=size.layers,
            heads=size.heads,
            mlp=size.mlp,
            vocab=448,
            pad=64,
        )
    ).eval()
    wanted = set(plain.state_dict())
    weights = {name: tensor for name, tensor in load_file(directory / "model.safetensors").items() if name in wanted}
    plain.load_state_dict(weights)
    image = np.random.default_rng(0).integers(0, 256, (size.side, size.side, 3), np.uint8)
    Image.fromarray(image).save(directory / "frame.png")
    prompter = load_openvla(directory, torch.float32, torch.device("cpu"))
    ids = prompter.prompt_ids("Stack the cups")
    tokens = plain.predict(torch.from_numpy(image)[None], torch.tensor([ids]), size.actions)[0].tolist()
    with torch.inference_mode():
        projected = plain.image_tokens(torch.from_numpy(image)[None])
        hidden: list[torch.Tensor] = []
        plain.language_model.model.norm.register_forward_hook(lambda *seen: hidden.append(seen[-1][0, -1].clone()))
        logits = plain.forward_tokens(projected, torch.tensor([ids]))[0, -1]
    centers = (np.linspace(-1, 1, 256)[:-1] + np.linspace(-1, 1, 256)[1:]) / 2
    normalized = centers[np.clip(384 - np.array(tokens) - 1, 0, 254)]
    q01, q99 = -0.1 * np.arange(1, 8), 0.2 * np.arange(1, 8)
    actions = [*(0.5 * (normalized + 1) * (q99 - q01) + q01)[:6], normalized[6]]
    case = {
        "name": "one",
        "image": "frame.png",
        "instruction": "Stack the cups",
        "unnorm_key": None,
        "input_ids": list(ids[:-1]),
        "input_ids_after_29871": list(ids),
        "action_token_ids": tokens,
        "normalized_actions": normalized.tolist(),
        "actions": actions,
    }
    (directory / "cases.json").write_text(json.dumps({"cases": [case]}))
    tensors = {"projected": projected, "prefill_last_logits": logits, "final_hidden_last": hidden[0]}
    save_file({f"one.{name}": tensor for name, tensor in tensors.items()}, directory / "expected.safetensors")
    return directory


@pytest.fixture
def bundle(recorded: Path, tmp_path: Path) -> Path:
    """Its own copy of the recorded one, to damage."""
    return shutil.copytree(recorded, tmp_path / "bundle")


def change_case(bundle: Path, **entries: object) -> None:
    recorded = json.loads((bundle / "cases.json").read_text())
    recorded["cases"][0].update(entries)
    (bundle / "cases.json").write_text(json.dumps(recorded))


@pytest.mark.parametrize("pace", [SERIAL, Pace(7)])
def test_two_independent_implementations_agree(bundle: Path, pace: Pace):
    results = verify_bundle(bundle, pace)
    assert [result for result in results if not result.ok] == []
    assert {"projected", "final hidden", "prefill logits", "action tokens", "actions"} <= {
        result.quantity for result in results
    }


@pytest.mark.parametrize(
    ("entry", "quantity"),
    [("input_ids", "input ids"), ("input_ids_after_29871", "input ids"), ("action_token_ids", "action tokens"),
     ("normalized_actions", "normalized actions"), ("actions", "actions")],
)  # fmt: skip
def test_a_wrong_record_is_off(bundle: Path, entry: str, quantity: str):
    values = json.loads((bundle / "cases.json").read_text())["cases"][0][entry]
    values[2] += 1
    change_case(bundle, **{entry: values})
    assert [result.quantity for result in verify_bundle(bundle, SERIAL) if not result.ok] == [quantity]


@pytest.mark.parametrize("name", ["one.projected", "one.prefill_last_logits", "one.final_hidden_last"])
@pytest.mark.parametrize("wrong", [1e-3, float("nan"), float("inf")])
def test_a_wrong_tensor_is_off(bundle: Path, name: str, wrong: float):
    tensors = load_file(bundle / "expected.safetensors")
    tensors[name].view(-1)[7] += wrong
    save_file(tensors, bundle / "expected.safetensors")
    assert len([result for result in verify_bundle(bundle, SERIAL) if not result.ok]) == 1


def test_text_ids_may_be_recorded_without_the_trailing_space_alone(bundle: Path):
    change_case(bundle, input_ids_after_29871=None)
    assert [result for result in verify_bundle(bundle, SERIAL) if not result.ok] == []


def test_a_large_value_may_deviate_by_its_own_rounding_only(bundle: Path):
    tensors = load_file(bundle / "expected.safetensors")
    scale = tensors["one.projected"].abs().max()
    for wrong, off in ((0.0, 0), (1.0, 1)):
        tensors["one.projected"].view(-1)[0] += wrong
        save_file(tensors, bundle / "expected.safetensors")
        (found,) = (result for result in verify_bundle(bundle, SERIAL) if result.quantity == "projected")
        assert (not found.ok) == bool(off)
        assert found.tolerance == pytest.approx(1e-4 * max(1.0, float(scale) / 20), rel=0.1)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"name": None}, r"cases\[0\] lacks name"),
        ({"instruction": ["go"]}, r"cases\[0\]\.instruction must be text"),
        ({"instruction": "\ud800"}, r"cases\[0\]\.instruction must be text"),
        ({"action_token_ids": None}, r"cases\[0\] lacks action_token_ids"),
        ({"action_token_ids": [1.5]}, r"cases\[0\]\.action_token_ids must be a list of numbers"),
        ({"actions": [[1.0]]}, r"cases\[0\]\.actions must be a list of numbers"),
        ({"unnorm_key": []}, r"cases\[0\]\.unnorm_key must be text"),
        ({"unnorm_key": "elsewhere"}, "'elsewhere' is not one of tiny"),
    ],
)
def test_a_record_of_the_wrong_kind_is_reported(bundle: Path, entries: dict[str, object], message: str):
    change_case(bundle, **entries)
    with pytest.raises(CheckpointError, match=message) as caught:
        verify_bundle(bundle, SERIAL)
    assert "\n" not in str(caught.value)


def test_two_cases_of_one_name_are_reported(bundle: Path):
    recorded = json.loads((bundle / "cases.json").read_text())
    (bundle / "cases.json").write_text(json.dumps({"cases": recorded["cases"] * 2}))
    with pytest.raises(CheckpointError, match="same name"):
        verify_bundle(bundle, SERIAL)


@pytest.mark.parametrize("ids", [[[10**6]], [[-1]], [[0]] * 8, [0]], ids=["beyond", "below", "too-many", "flat"])
def test_step_ids_that_fit_no_step_are_off(bundle: Path, ids: list):
    tensors = load_file(bundle / "expected.safetensors")
    tensors |= {"one.step_top1_ids": torch.tensor(ids), "one.step_top1_logits": torch.zeros(len(ids), 1)}
    save_file(tensors, bundle / "expected.safetensors")
    off = [result.quantity for result in verify_bundle(bundle, SERIAL) if not result.ok]
    assert off == ["step logits"]


@pytest.mark.parametrize("missing", ["cases.json", "expected.safetensors", "frame.png"])
def test_a_broken_bundle_is_reported(bundle: Path, missing: str):
    (bundle / missing).unlink()
    with pytest.raises(CheckpointError, match=missing.split(".")[0] if missing != "frame.png" else "image"):
        verify_bundle(bundle, SERIAL)


def test_every_tensor_is_on_the_device_that_is_named(bundle: Path):
    """On an emulated device, where an operation over tensors of two devices fails as it does on CUDA."""
    with other_device() as device, exact_float32(OTHER):
        results = verify_bundle(bundle, SERIAL, device=OTHER)
    assert results and [result for result in results if not result.ok] == []
    assert {"aten.linear.default", "aten.softmax.int"} & set(device.computed), "attention and matrices ran there"
    on_the_cpu = verify_bundle(bundle, SERIAL)
    assert [result.quantity for result in results] == [result.quantity for result in on_the_cpu]


@pytest.fixture
def with_tf32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("with_tf32")
def test_off_the_cpu_float32_is_computed_in_full():
    """No TF32 in matrices, and not the attention kernel that emulates float32 by it; a CPU is left as it serves."""
    enabled, precision = torch.backends.cuda.mem_efficient_sdp_enabled, torch.get_float32_matmul_precision
    with exact_float32(CPU):
        assert enabled() and precision() == "high"
    with exact_float32(OTHER):
        assert not enabled() and precision() == "highest"
    assert enabled() and precision() == "high"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_here_is_rejected_as_serve_does(bundle: Path):
    for check in (lambda: verify_checkpoint(bundle, [], lambda *_: None, device="cuda"),
                  lambda: verify_checkpoint(bundle, [], lambda *_: None, weights="fp8", device="cuda")):  # fmt: skip
        with pytest.raises(ConfigError, match="device: cuda is not available here; run `edgeflow doctor`, or use cpu"):
            check()
    told = CliRunner().invoke(app, ["verify", str(bundle), "--device", "tpu"])
    assert told.exit_code != 0 and "device: must be cpu, cuda or auto" in str(told.exception)
