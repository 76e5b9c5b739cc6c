"""The modules of deploy/kv260 as programs, by Verilator. Tests are skipped where the tools are absent or too old."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DESIGN = Path(__file__).parents[3] / "deploy" / "kv260"
ARITHMETIC = DESIGN / "arithmetic"


VERILATOR, YOSYS = "5.006", "0.23"
"""The oldest versions that are known to read the design: those of Debian 12."""


def lacking(*programs: str) -> str:
    """The programs that are not installed, in words; empty where all are."""
    missing = [each for each in programs if shutil.which(each) is None]
    return f"not installed: {', '.join(missing)} (apt-get install)" if missing else ""


def too_old(program: str, option: str, oldest: str) -> str:
    """The problem with the version that a program states, in words; empty if it is `oldest` or newer."""
    stated = subprocess.run([program, option], capture_output=True, text=True, timeout=60).stdout.strip()
    found = re.match(r"\w+ (\d+)\.(\d+)", stated)
    if found and tuple(map(int, found.groups())) >= tuple(map(int, oldest.split("."))):
        return ""
    return f"{program}: expected {oldest} or newer, found {stated or 'no version'}"


def unreadable(yosys: str) -> str:
    """Why a yosys of a version other than YOSYS does not read the design; empty where it does, and for YOSYS."""
    stated = subprocess.run([yosys, "-V"], capture_output=True, text=True, timeout=60).stdout.strip()
    if f"{stated} ".startswith(f"Yosys {YOSYS} "):
        return ""
    script = f"read_verilog -sv -I{ARITHMETIC} {' '.join(sources())}"
    done = subprocess.run([yosys, "-q", "-p", script], capture_output=True, text=True, timeout=60)
    return f"{stated} does not read the design, {YOSYS} does: {done.stderr.strip()}" if done.returncode else ""


def _skipped(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(bool(reason), reason=reason)


needs_verilator = _skipped(lacking("verilator", "g++", "make") or too_old("verilator", "--version", VERILATOR))
needs_yosys = _skipped(lacking("yosys") or too_old("yosys", "-V", YOSYS))


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
