"""The cases in tests/recorded: `edgeflow verify` agrees with them, and they are those of the whole bundles."""

from __future__ import annotations

import filecmp
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeflow.cli import app
from tests.cases import by_night
from tests.oracles import ORACLES, RECORDED

ROOT = Path(__file__).parents[3]
COMMANDS = [
    shlex.split(line)[1:]
    for line in (RECORDED / "README.md").read_text().splitlines()
    if line.startswith(".venv/bin/python scripts/cut-bundle ")
]
FOLDERS = [command[2].rsplit("/", 1)[1] for command in COMMANDS]


@pytest.mark.parametrize("name", ["act", "pi0", "smolvla-special-tokens", *map(by_night, ("llama", "awq", "eagle3"))])
def test_verify_agrees(name: str):
    result = CliRunner().invoke(app, ["verify", str(RECORDED / name)])
    assert result.exit_code == 0 and "comparisons agree" in result.stdout


def test_recorded_cases_are_small():
    sizes = {path.name: sum(file.stat().st_size for file in path.rglob("*")) for path in RECORDED.iterdir()}
    assert set(sizes) == {"README.md", "wire", "smolvla-special-tokens", *FOLDERS}
    assert max(sizes.values()) <= 4_000_000 and sum(sizes.values()) <= 15_000_000


@pytest.mark.parametrize("command", COMMANDS, ids=FOLDERS)
def test_recorded_cases_are_cut_from_whole_bundles(command: list[str], tmp_path: Path):
    script, source, target, *cases = command
    whole = ORACLES / Path(source).name
    if not whole.is_dir():
        pytest.skip(f"no {whole}")
    subprocess.run([sys.executable, script, whole, tmp_path / "cut", *cases], cwd=ROOT, check=True)
    files = sorted(str(path.relative_to(ROOT / target)) for path in (ROOT / target).rglob("*") if path.is_file())
    assert filecmp.cmpfiles(ROOT / target, tmp_path / "cut", files, shallow=False) == (files, [], [])


def test_an_unknown_case_is_rejected(tmp_path: Path):
    script = ROOT / "scripts" / "cut-bundle"
    command = [sys.executable, script, RECORDED / "pi0", tmp_path / "cut", "case0", "case7"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "no case case7" in done.stderr
