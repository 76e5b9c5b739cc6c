"""The modules of deploy/kv260 as programs, by Verilator. Tests that build one are skipped where it is absent."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DESIGN = Path(__file__).parents[3] / "deploy" / "kv260"
ARITHMETIC = DESIGN / "arithmetic"


def _needs(*programs: str) -> pytest.MarkDecorator:
    missing = [each for each in programs if shutil.which(each) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)} (apt-get install)")


needs_verilator = _needs("verilator", "g++", "make")
needs_yosys = _needs("yosys")


def sources() -> list[str]:
    """Every module of the design."""
    return [str(path) for folder in (ARITHMETIC, DESIGN) for path in sorted(folder.glob("*.sv"))]


def build(top: str, folder: Path, *more: str) -> Path:
    """The program of module `top` and its bench `top`.cpp, built in `folder`."""
    options = ["--cc", "--exe", "--build", "-Wno-fatal", f"-I{ARITHMETIC}", "-CFLAGS", "-O1 -w"]
    files = [*more, *sources(), str(HERE / f"{top}.cpp")]
    done = subprocess.run(
        ["verilator", *options, "--top-module", top, "--Mdir", str(folder), *files],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder / f"V{top}"


def lint(top: str) -> str:
    """The warnings about `top` and all below it; not those of parameters and bits that a module does not use."""
    options = ["--lint-only", "-Wall", "-Wno-UNUSEDPARAM", "-Wno-UNUSEDSIGNAL", "-Wno-DECLFILENAME", f"-I{ARITHMETIC}"]
    done = subprocess.run(
        ["verilator", *options, "--top-module", top, *sources()], capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr


def run(program: Path, given: bytes) -> bytes:
    """Its answer to what it reads from standard input."""
    return subprocess.run([program], input=given, stdout=subprocess.PIPE, timeout=60, check=True).stdout
