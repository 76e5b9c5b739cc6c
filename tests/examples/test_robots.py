"""The robots of examples/ move, with the SDK's dependencies alone, as a person runs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracles import oracle
from tests.policies.act.checkpoint import write_checkpoint
from tests.policies.act.twin import TwinSize
from tests.policies.service_process import served

ROOT = Path(__file__).parents[2]
SDK_ALONE = """
import runpy, sys
ALLOWED = {"edgeflow_client", "grpc", "google", "numpy", "typing_extensions", "cython_runtime"}
ALLOWED |= set(sys.stdlib_module_names)
class Missing:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED and not top.startswith("_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script where no other library is installed."""


def run(example: str, *arguments: str) -> tuple[int, int]:
    """Run an example; its moves and holds."""
    command = [sys.executable, "-c", SDK_ALONE, f"examples/{example}", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    found = re.fullmatch(r"(\d+) moves, (\d+) holds\n", result.stdout)
    assert found, result.stdout
    return int(found[1]), int(found[2])


def needs(model: Path) -> list[str]:
    """The arguments that describe a checkpoint's cameras and state."""
    features = json.loads((model / "config.json").read_text())["input_features"]
    arguments = []
    for name, feature in features.items():
        if feature["type"] == "VISUAL":
            _, height, width = feature["shape"]
            arguments += ["--camera", f"{name}:{width}x{height}"]
        else:
            arguments += ["--state", f"{name}:{feature['shape'][0]}"]
    return arguments


def test_joints_move_an_arm(tmp_path: Path):
    model = write_checkpoint(tmp_path / "act", TwinSize(state=5, action=5))
    with served(tmp_path, str(model), policy={"control_rate_hz": 20.0}) as address:
        moves, _ = run("joints.py", "--address", address, *needs(model))
    assert moves >= 55


@pytest.mark.oracle("act-tiny")
def test_joints_move_an_arm_as_they_are(tmp_path: Path):
    with served(tmp_path, str(oracle("act-tiny")), policy={"control_rate_hz": 20.0}) as address:
        moves, _ = run("joints.py", "--address", address)
    assert moves >= 55


def test_tool_poses_move_an_arm_as_they_are(tmp_path: Path):
    with served(tmp_path, "demo") as address:
        moves, _ = run("tool_pose.py", "--address", address)
    assert moves >= 55
