"""The GPU suite on a CPU with tiny shapes: every section, and what the suite does around them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path
from time import monotonic

import pytest
import torch

from edgeflow.lab.gpu import device, suite
from edgeflow.lab.gpu import section_process as child
from edgeflow.lab.gpu.section_order import LEFT_OUT, SECTIONS, Order
from edgeflow.lab.gpu.sections import (
    chat_speed,
    int4,
    kernel_checks,
    operator_speed,
    policy_speed,
    token_checks,
    towers,
    tuning,
)

ROOT = Path(__file__).parents[3]
ARGUMENTS = ("--device", "cpu", "--size", "tiny", "--frames", "12")


@pytest.fixture(autouse=True)
def few_samples(monkeypatch):
    """The small problems of all operators take half a minute in all dtypes; they have separate tests."""
    monkeypatch.setattr(kernel_checks, "FLOATS", (torch.float32,))
    monkeypatch.setattr(int4, "CALLS", 1)
    monkeypatch.setattr(int4, "last_level_cache", lambda _: 0)
    monkeypatch.setattr(chat_speed, "REQUESTS", 2)
    monkeypatch.setattr(policy_speed, "ROUNDS", 1)
    for module in (device, int4, operator_speed, towers, tuning):
        monkeypatch.setattr(module, "SAMPLES", 1)


def run(folder: Path, *arguments: str) -> tuple[int, dict, str]:
    """In this process."""

    def here(asked: Order) -> dict:
        return child.run(asked, folder / "result.json")

    code = suite.main([*ARGUMENTS, "--out", str(folder), *arguments], here)
    return code, *written(folder)


def written(folder: Path) -> tuple[dict, str]:
    return json.loads((folder / "gpu-suite.json").read_text()), (folder / "gpu-suite.md").read_text()


def found_by(folder: Path, *names: str) -> dict[str, dict]:
    """The findings of these sections, which all end well and are in the report."""
    code, results, text = run(folder, "--minutes", "60", "--sections", *names)
    assert {name: section["status"] for name, section in results["sections"].items()} == dict.fromkeys(names, "ok")
    assert code == 0 and all(f"## {name}" in text for name in names)
    assert "| K = 32: pipelined / serial |" in text
    return {name: section["found"] for name, section in results["sections"].items()}


CHECKS = ("facts", "ceilings", "kernels", "tokens", "frames")
POLICIES = ("ceilings", "tune", "policy", "baseline", "flow", "profile")
OTHERS = ("ceilings", "chat", "drafts", "fp8", "int4", "long-actions", "towers", "long-context", "operators")
OF_PROCESSES = ("service", "verify")  # tests/lab/gpu/test_served.py


def test_every_section_is_tested():
    assert list(SECTIONS) == list(child.FUNCTIONS)
    assert set(SECTIONS) == {*CHECKS, *POLICIES, *OTHERS, *OF_PROCESSES}


def test_sections_that_check(tmp_path, capsys):
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    found = found_by(tmp_path, *CHECKS)
    assert found["kernels"]["checks"] > 80 and found["kernels"]["off"] == []
    assert {row["share"] for row in found["tokens"]["tokens that differ"]} == {0.0}
    assert [row["equal"] for row in found["frames"]["frames"]] == [True] * 4
    assert "[5/5] frames" in capsys.readouterr().err
    assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction, "as the worker sets it"


def test_sections_of_the_policy(tmp_path):
    found = found_by(tmp_path, *POLICIES)
    assert all(each["problems"] == each["tuned"] > 10 for each in found["tune"]["models"])
    assert (tmp_path / "operators-tiny.json").exists() and (tmp_path / "operators-tiny-chat.json").exists()
    systems = {row["system"]: row for row in found["policy"]["systems"]}
    assert list(systems) == ["serial", "pipelined, rotate", "pipelined, copy", "speculative", "naive pipe"]
    floors = [row["share of floor"] for name, row in systems.items() if name != "speculative"]
    assert all(0 < share < 1 for share in floors) and systems["speculative"]["frames/s"] > 0
    assert found["baseline"]["share of our tokens that differ"] == 0.0 and found["baseline"]["frames/s"] > 0
    of_flow = found["flow"]["policies"]
    assert {row["policy"] for row in of_flow} == {"SmolVLA", "π0", "π0.5"} and len(of_flow) == 3 * 6
    assert all(0 < row["share of floor"] < 1 for row in of_flow)
    assert found["profile"]["steady passes"] == 6 and (tmp_path / found["profile"]["trace"]).exists()


def test_the_other_sections(tmp_path):
    found = found_by(tmp_path, *OTHERS)
    assert [row["prompt"] for row in found["chat"]["requests"]] == [16, 24, 32, 64]
    answers = found["drafts"]["answers"]
    ways = [("none", 1), *((way, settled) for way in ("tree", "chain", "base alone") for settled in (2, 3, 4))]
    assert [(row["drafts"], row["imposed"]) for row in answers] == ways
    passes = [-(-24 // row["imposed"]) for row in answers]
    assert [row["tokens per pass"] for row in answers] == [24 / count for count in passes], "24 tokens behind the first"
    assert all(row["share of copy bandwidth"] > 0 for row in answers)
    assert found["fp8"]["share of tokens that FP8 changes"] > 0
    projections = found["int4"]["projections"]
    assert len(projections) == 2 * 2 * 4 and all(row["ok"] and row["implementation"] != "gemm" for row in projections)
    assert {row["rows"] for row in projections} == {1, 30} and found["int4"]["share of copy bandwidth"] > 0
    assert [row["system"] for row in found["int4"]["systems"]] == ["model's dtype", "4 bits"]
    assert found["long-actions"]["action tokens"] == 32
    formats = ("float32", "int8", "int4")
    assert [(row["context"], row["KV"]) for row in found["long-context"]["steps"]] == [(64, kv) for kv in formats]
    ways = {row["way"]: row for row in found["towers"]["ways"]}
    assert ways["as served"]["largest difference"] == 0.0 and ways["tower 1 alone"]["ms"] > 0
    timed = {(row["operator"], row["implementation"]) for row in found["operators"]["operators"] if "µs" in row}
    assert {("packed_attention", "slots_in_place"), ("rms_norm", "fused")} <= timed


def test_a_wrong_kernel_is_reported_and_the_others_continue(tmp_path, monkeypatch):
    small = kernel_checks.small_cases
    few = ("swiglu", "rms_norm")
    monkeypatch.setattr(kernel_checks, "small_cases", lambda name, **how: small(name, **how) if name in few else [])
    monkeypatch.setattr(kernel_checks, "tolerance", lambda case, *_: -1.0 if case.op_name == "swiglu" else float("inf"))
    code, results, text = run(tmp_path, "--sections", "kernels", "facts")
    kernels = results["sections"]["kernels"]
    assert code == 1 and kernels["status"] == "failed" and results["sections"]["facts"]["status"] == "ok"
    assert {row["operator"] for row in kernels["found"]["off"]} == {"swiglu"}
    assert "| swiglu | fused | float32 |" in text and "kernel checks are off" in text


def test_tokens_that_differ_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(token_checks, "differing", lambda *_: 0.5)
    code, results, text = run(tmp_path, "--sections", "tokens")
    assert code == 1 and "tokens differ from serial ones" in text
    assert results["sections"]["tokens"]["found"]["tokens that differ"][0]["share"] == 0.5


def test_projections_that_deviate_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(int4, "tolerance", lambda *_: -1.0)
    code, results, _ = run(tmp_path, "--sections", "int4")
    assert code == 1 and results["sections"]["int4"]["error"] == "16 of 16 projections in 4 bits deviate"


def test_frames_that_differ_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("edgeflow.lab.gpu.sections.frames.torch.equal", lambda *_: False)
    code, results, _ = run(tmp_path, "--sections", "frames")
    assert code == 1 and "differ from the host's" in results["sections"]["frames"]["error"]


def test_a_section_that_breaks_is_reported(tmp_path, monkeypatch):
    def broken(_: object) -> dict:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setitem(child.FUNCTIONS, "ceilings", broken)
    code, results, _ = run(tmp_path, "--sections", "ceilings", "facts")
    assert code == 1 and results["sections"]["ceilings"]["error"] == "RuntimeError: no kernel image is available"
    assert results["sections"]["facts"]["status"] == "ok"


def test_a_section_that_cannot_be_done_here_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, results, text = run(tmp_path, "--sections", "baseline")
    assert code == 0 and results["sections"]["baseline"]["status"] == "skipped"
    assert "transformers cannot be imported" in text
    assert "| baseline, plain transformers, frames/s |  |  | not measured |" in text


def test_no_section_starts_when_the_time_is_over(tmp_path):
    code, results, _ = run(tmp_path, "--minutes", "0", "--sections", "facts", "kernels")
    assert code == 0
    assert {section["error"] for section in results["sections"].values()} == {"no time left"}


def test_a_section_reports_what_it_leaves_out_for_lack_of_time(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_checks, "monotonic", lambda: float("inf"))
    code, results, text = run(tmp_path, "--sections", "kernels", "--minutes", "60")
    kernels = results["sections"]["kernels"]
    assert code == 0 and kernels["status"] == "partial" and kernels["found"]["checks"] == 0
    assert any(name.startswith("swiglu float32") for name in kernels["found"][LEFT_OUT])
    assert "| kernels | partial |" in text and "no time for " in text


def test_sections_stop_when_their_time_is_over(tmp_path, monkeypatch):
    """Each keeps what it has; a policy's first system and a baseline's fewest frames are always measured."""
    monkeypatch.setattr(suite, "end_of", lambda *_: 0.0)
    monkeypatch.setattr(suite, "FEWEST_S", 0.0)
    names = ("policy", "baseline", "chat", "drafts", "int4", "long-context", "towers", "operators")
    _, results, _ = run(tmp_path, "--minutes", "60", "--sections", *names)
    found = {name: section["found"] for name, section in results["sections"].items()}
    assert [row["system"] for row in found["policy"]["systems"]] == ["serial"] and found["policy"]["rounds"] == 1
    assert len(found["policy"][LEFT_OUT]) == 4 and found["baseline"]["frames"] == 3
    assert found["chat"][LEFT_OUT] == ["tiny-chat"]
    assert found["drafts"][LEFT_OUT] == ["none", "tree", "chain", "base alone"]
    assert found["long-context"][LEFT_OUT] == [f"64 rows, {kv}" for kv in ("float32", "int8", "int4")]
    assert found["int4"][LEFT_OUT] == ["pipeline", "chat"]
    assert found["towers"]["ways"] == [] and found["operators"]["operators"] == []


def test_the_json_is_printed_when_asked_for(tmp_path, capsys):
    run(tmp_path, "--minutes", "0", "--sections", "facts", "--json")
    assert json.loads(capsys.readouterr().out)["sections"]["facts"]["status"] == "skipped"


def test_a_section_runs_in_a_separate_process(tmp_path):
    assert suite.main([*ARGUMENTS, "--out", str(tmp_path), "--sections", "facts", "--minutes", "60"]) == 0
    results, text = written(tmp_path)
    assert results["sections"]["facts"]["found"]["torch"] == version("torch") and "- profile: cpu" in text


def in_child(monkeypatch, folder: Path, script: str, seconds: float) -> dict:
    """The section's process is this script; its arguments are those of python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    ends = monotonic() + seconds
    order = Order(section="facts", device="cpu", size="tiny", frames=12, ends=ends, out=str(folder))
    return suite.in_child(None)(order)


def test_a_process_that_dies_is_reported(tmp_path, monkeypatch):
    found = in_child(monkeypatch, tmp_path, "exit 3", 60)
    assert (found["status"], found["error"]) == ("failed", "ended with code 3")


def test_a_process_that_hangs_is_killed_and_what_it_found_is_kept(tmp_path, monkeypatch):
    script = 'echo $$ >"$(dirname "$0")/pid"; echo \'{"status": "running", "found": {"x": 1}, "seconds": 1}\' >"$4"'
    found = in_child(monkeypatch, tmp_path, f"{script}; sleep 600", 1.0)
    seconds = found.pop("seconds")
    assert found == {"status": "cut off", "found": {"x": 1}, "error": "stopped after 1 s"} and 1 <= seconds < 1.5
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_wheels_are_there_for_the_sections_only(tmp_path):
    wheel = tmp_path / "carried-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("carried.py", "ANSWER = 42\n")
        file.writestr("carried-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n")
        file.writestr("carried-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("carried-1.0.dist-info/RECORD", "")
    site = suite.install(tmp_path, tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", "import carried; print(carried.ANSWER)"],
        env={**os.environ, "PYTHONPATH": suite.python_path(site)},
        capture_output=True,
        text=True,
    )
    assert result.stdout == "42\n", result.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--wheels", "."), "no *.whl"),
        (("--bundles", "nowhere"), "no folder nowhere"),
        (("--frames", "3"), "at least 10"),
        (("--sections", "speed"), "invalid choice"),
    ],
)
def test_wrong_usage_is_reported(tmp_path, monkeypatch, capsys, arguments: tuple[str, ...], problem: str):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        suite.main(arguments)
    assert exit_.value.code == 2 and problem in capsys.readouterr().err


def test_packages_that_are_missing_are_reported_with_the_way_to_get_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(suite, "find_spec", lambda name: None if name in ("tokenizers", "PIL") else name)
    with pytest.raises(SystemExit) as exit_:
        suite.main([*ARGUMENTS, "--out", str(tmp_path)])
    assert exit_.value.code == 2 and "lacks tokenizers, PIL: see scripts/gpu-wheels" in capsys.readouterr().err


def started_without(absent: list[str], module: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.modules.update(dict.fromkeys({absent!r}))\nimport edgeflow.lab.gpu.{module}"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


OF_A_SERVICE = ["rich", "typer", "fastapi", "uvicorn", "grpc", "msgpack", "pytest", "simplejpeg", "triton"]


def test_the_suite_starts_with_only_the_standard_library():
    """Its folder of wheels may hold everything else."""
    result = started_without([*OF_A_SERVICE, "torch", "numpy", "pydantic", "safetensors", "tokenizers", "PIL"], "suite")
    assert result.returncode == 0, result.stderr


def test_sections_start_without_what_a_service_needs():
    result = started_without([*OF_A_SERVICE, "transformers"], "section_process")
    assert result.returncode == 0, result.stderr
