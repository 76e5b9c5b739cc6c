"""The environment in which OpenMP is loaded, as OpenMP itself displays it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from edgeflow.openmp import SPINS, limit_spinning

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_what_the_user_has_set_is_kept(name: str):
    environment = {name: "passive"}
    limit_spinning(environment)
    assert environment == {name: "passive"}


@pytest.mark.skipif("USE_OPENMP=ON" not in torch.__config__.show(), reason="torch computes without OpenMP")
@pytest.mark.parametrize(
    "code",
    [
        "import sys; from edgeflow.cli import main; sys.argv = ['edgeflow', 'ops']; main()",
        "from edgeflow.worker import start; start._work = lambda _: start._load() or 0;"
        "start.bind_to_parent = lambda *_: None; start.run()",
    ],
    ids=["the command line", "a worker"],
)
def test_threads_of_torch_sleep_soon(code: str):
    """OpenMP reads its settings when it is loaded, so nothing may load torch before."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    environment["OMP_DISPLAY_ENV"] = "verbose"
    arguments = ["--fd", "0", "--config", "none"] if "start" in code else []
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert f"GOMP_SPINCOUNT = '{SPINS}'" in ended.stderr
