"""The check of a Jetson's base image: each fault is one line that names what to do."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import check_base
from deploy.check_base import BaseImage, faults, faults_installed, warnings

ROOT = Path(__file__).parents[2]
LOCK = "constraints/jetson.txt"
PYTHONS = ["3.10", "3.12"]
ORIN = BaseImage(
    python="3.10",
    machine="aarch64",
    torch="2.7.0",
    torch_folder=Path("/usr/local/lib/python3.10/dist-packages/torch"),
    cuda="12.6",
    gpus=("sm_87",),
    ptxas="12.6",
)
THOR = replace(
    ORIN,
    python="3.12",
    torch="2.8.0a0+34c6371d24.nv25.8",
    torch_folder=Path("/opt/venv/lib/python3.12/site-packages/torch"),
    cuda="13.0",
    gpus=("sm_80", "sm_90", "sm_100", "sm_110", "compute_120"),
    ptxas="13.0",
)


@pytest.mark.parametrize(("base", "gpu"), [(ORIN, "8.7"), (THOR, "11.0a")])
def test_bases_of_both_jetpacks_have_no_fault(base: BaseImage, gpu: str):
    assert faults(base, LOCK, PYTHONS) == faults_installed(base, LOCK) == warnings(base, [gpu]) == []


@pytest.mark.parametrize(
    ("fault", "names", "mend"),
    [
        (
            {"python": "3.11"},
            "Python 3.11, and constraints/jetson.txt holds wheels for Python 3.10 and 3.12",
            "BASE=",
        ),
        ({"python": "3.8"}, "Python 3.8", "--build-arg LOCK=FILE --build-arg DOCS_LOCK=FILE"),
        (
            {"torch": "", "torch_error": "No module named 'torch'"},
            "No module named 'torch'",
            "BASE=dustynv/",
        ),
        ({"cuda": ""}, "torch 2.7.0 of this base is a build without CUDA", "BASE=nvcr.io/nvidia/pytorch:25.08-py3"),
        ({"torch": "2.5.0a0+872d972e41.nv24.8"}, "older than 2.6", "(JetPack 6)"),
        ({"ptxas": ""}, "/usr/local/cuda/bin/ptxas does not run", "apt-get install cuda-nvcc-12-6"),
        ({"ptxas": "13.0"}, "ptxas is of CUDA 13.0, torch of CUDA 12.6", "both are of one release"),
    ],
)
def test_a_fault_is_one_line_with_its_mend(fault: dict, names: str, mend: str):
    (line,) = faults(replace(ORIN, **fault), LOCK, PYTHONS)
    assert names in line and mend in line and "\n" not in line


def test_the_wheels_may_neither_replace_torch_nor_bring_a_numpy_that_it_cannot_use():
    (hidden,) = faults_installed(replace(ORIN, torch_folder=Path("/opt/edgeflow/lib/python3.10/torch")), LOCK)
    assert "hides the base's: take torch out of constraints/jetson.txt" in hidden
    (array,) = faults_installed(replace(ORIN, numpy_error="NumPy 2.2.6: Numpy is not available"), LOCK)
    assert "NumPy 2.2.6" in array and "a base with a newer torch, or an older NumPy in constraints/jetson.txt" in array


def test_the_page_explains_these_errors():
    page = (ROOT / "docs/operate/deploy.md").read_text()
    table = page.partition("| error | what to do |")[2].partition("\n\n")[0]
    named = [text for row in table.splitlines()[2:] for text in re.findall(r"`([^`]+)`", row.split("|")[1])]
    broken = [replace(ORIN, python="3.11", cuda="", torch="2.5", ptxas=""), replace(ORIN, ptxas="13.0")]
    found = [line for base in [*broken, replace(ORIN, torch="")] for line in faults(base, LOCK, PYTHONS)]
    found += faults_installed(replace(ORIN, torch_folder=Path("/opt/edgeflow/torch"), numpy_error="NumPy 2"), LOCK)
    assert [text for text in named if not any(text in line for line in found)] == []
    assert [line for line in found if not any(text in line for text in named)] == []


def test_what_the_build_cannot_know_is_a_warning():
    (machine,) = warnings(replace(ORIN, machine="x86_64", gpus=()), ["8.7"])
    assert "x86_64" in machine and "aarch64" in machine
    (gpu,) = warnings(ORIN, ["11.0a"])
    assert "kernels for sm_87, none for 11.0a" in gpu and "ARCHITECTURES" in gpu


def test_the_oldest_torch_is_the_project_s():
    (least,) = re.findall(r'"torch>=(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert tuple(map(int, least)) == check_base.OLDEST_TORCH


def test_it_runs_by_itself_and_ends_the_build(tmp_path: Path):
    """On this machine's torch, which no lock for Python 2.7 fits."""
    lock = tmp_path / "old.txt"
    lock.write_text("# Every wheel of old: Python 2.7 on aarch64. Written by\n")
    command = [sys.executable, ROOT / "deploy" / "check_base.py", lock, "--gpus", "8.7"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 1 and told.stderr == ""
    assert re.search(
        r"^error: this base has Python 3\.\d+, and .*old.txt holds wheels for Python 2\.7", told.stdout, re.M
    )


def test_a_lock_of_no_python_is_said_so():
    with pytest.raises(SystemExit, match="first line names no Python: write it with scripts/check-wheels --update"):
        check_base.pythons_of("numpy==2.2.6\n")
