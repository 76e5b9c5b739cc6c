"""The GPU suite's logic, on a CPU with tiny shapes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from edgeflow.bench import sections, suite
from edgeflow.bench.floors import Ceilings, Work, decoder_work, pipelined_floor_s, serial_floor_s, vision_work
from edgeflow.bench.random_policy import SIZES, random_frames, random_policy
from edgeflow.bench.sections import Setting
from edgeflow.kernels.layout import Span
from edgeflow.models.llama import LlamaConfig

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
TINY, LARGE = SIZES["tiny"], SIZES["openvla-7b"]


@pytest.fixture(autouse=True)
def few_cases(monkeypatch):
    """The small problems of all operators take half a minute in all dtypes; they have tests of their own."""
    monkeypatch.setattr(sections, "FLOATS", (torch.float32,))


def run(tmp_path, *arguments: str) -> tuple[int, dict, str]:
    code = suite.main(["--device", "cpu", "--size", "tiny", "--frames", "12", "--out", str(tmp_path), *arguments])
    return code, json.loads((tmp_path / "gpu-suite.json").read_text()), (tmp_path / "gpu-suite.md").read_text()


def test_all_sections_run_and_are_reported(tmp_path, capsys):
    code, results, text = run(tmp_path)
    assert code == 0 and list(results["sections"]) == list(sections.SECTIONS)
    assert {section["status"] for section in results["sections"].values()} == {"ok"}
    found = {name: section["found"] for name, section in results["sections"].items()}
    assert found["kernels"]["checks"] > 80 and found["kernels"]["off"] == []
    assert set(found["lossless"]["tiny float32"].values()) == {0.0}
    assert all(fps > 0 for fps in found["speed"]["fps"].values())
    assert 0 < found["speed"]["share_of_floor"]["pipelined, rotate"] < 1
    assert len(found["tuning"]["tuned"]) == found["tuning"]["problems"]
    assert all(f"## {name}" in text for name in sections.SECTIONS)
    assert "[7/7] tuning" in capsys.readouterr().err


def test_a_wrong_kernel_is_reported_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(sections, "tolerance", lambda case, dtype: -1.0 if case.op_name == "swiglu" else 1.0)
    code, results, text = run(tmp_path, "--sections", "kernels", "facts")
    kernels = results["sections"]["kernels"]
    assert code == 1 and kernels["status"] == "failed" and results["sections"]["facts"]["status"] == "ok"
    assert {row["op"] for row in kernels["found"]["off"]} == {"swiglu"}
    assert "| swiglu | fused | float32 |" in text and "kernel checks are off" in text


def test_a_section_that_breaks_is_told(tmp_path, monkeypatch):
    def broken(setting: Setting) -> dict:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setitem(sections.SECTIONS, "ceilings", broken)
    code, results, _ = run(tmp_path, "--sections", "ceilings", "speed")
    assert code == 1
    assert results["sections"]["ceilings"]["error"] == "RuntimeError: no kernel image is available"
    assert "floor_s" not in results["sections"]["speed"]["found"]


def test_tokens_that_differ_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sections, "_loss", lambda *arguments: 0.5)
    code, _, text = run(tmp_path, "--sections", "lossless")
    assert code == 1 and "50.00% of tokens differ" in text


def test_no_section_starts_when_the_time_is_over(tmp_path):
    code, results, _ = run(tmp_path, "--minutes", "0", "--sections", "facts", "kernels")
    assert code == 0
    assert {section["status"] for section in results["sections"].values()} == {"skipped"}


def test_the_suite_starts_without_what_a_service_needs():
    """The machine it is made for may have little more than torch, triton and transformers."""
    absent = ["pydantic", "rich", "typer", "fastapi", "uvicorn", "grpc", "msgpack", "pytest", "simplejpeg", "triton"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent!r}))\n"
        "from edgeflow.bench import suite; suite._options(['--size', 'openvla-7b'])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_random_policies_repeat_and_frames_differ():
    first, second = (random_policy(TINY, CPU, torch.float32) for _ in range(2))
    frames = random_frames(TINY, first, 2)
    embedded = [
        policy.embed_prefill(frames[0].pixel_values[None], [frames[0].prompt_ids])[0] for policy in (first, second)
    ]
    assert torch.equal(*embedded) and embedded[0].shape == (TINY.rows, 64)
    assert not torch.equal(frames[0].pixel_values, frames[1].pixel_values)


def test_work_counts_weights_once_and_rows_twice():
    text = LlamaConfig(
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=10,
    )
    size = type(TINY)("one", text, TINY.towers, 28, 14)
    weights = 8 * (8 + 4 + 4 + 8 + 3 * 16)
    assert decoder_work(size, [Span(0, 4, 1)]) == Work(
        2 * weights + 2 * 80 + 4 * 5 * 8, 2 * (weights + 80 + (4 + 2) * 2 * 4)
    )


def test_floors_of_the_real_shape():
    """7.5 billion parameters: a decode row reads 13 GB of weights, a prefill takes 4 TFLOP."""
    decode = decoder_work(LARGE, [Span(0, LARGE.rows, 1)])
    assert decode.bytes == pytest.approx(13.2e9, rel=0.02) and decode.flops == pytest.approx(13.3e9, rel=0.02)
    assert vision_work(LARGE).flops == pytest.approx(0.40e12, rel=0.05)
    ceilings = Ceilings(bandwidth=4e12, matrix_rate=700e12)
    assert ceilings.floor_s(decode) == decode.bytes / 4e12
    assert 2.5 < serial_floor_s(LARGE, ceilings) / pipelined_floor_s(LARGE, ceilings) < 6
