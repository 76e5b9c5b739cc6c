"""Versions of Verilator and yosys that cannot read the design are named; tests that need them are skipped then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.kv260.simulator import VERILATOR, YOSYS, lacking, too_old, unreadable


def program(folder: Path, stated: str) -> str:
    """A program that states a version and can do nothing else."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n[ $# = 1 ] && echo '{stated}' && exit 0\necho 'syntax error' >&2\nexit 1\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("stated", "oldest", "old"),
    [
        ("Verilator 4.038 2020-07-11 rev v4.036-114-g0cd4a57ad", VERILATOR, True),
        ("Verilator 5.004 2022-12-14 rev v5.004", VERILATOR, True),
        ("Verilator 5.006 2023-01-22 rev (Debian 5.006-3)", VERILATOR, False),
        ("Verilator 5.020 2024-01-01 rev (Debian 5.020-1)", VERILATOR, False),
        ("Yosys 0.9 (git sha1 1979e0b)", YOSYS, True),
        ("Yosys 0.23 (git sha1 7ce5011c24b)", YOSYS, False),
        ("Yosys 0.33+34 (git sha1 2584903a060)", YOSYS, False),
        ("", YOSYS, True),
    ],
)
def test_a_version_that_is_too_old_is_named(tmp_path: Path, stated: str, oldest: str, old: bool):
    path = program(tmp_path, stated)
    expected = f"{path}: expected {oldest} or newer, found {stated or 'no version'}" if old else ""
    assert too_old(path, "-V", oldest) == expected


def test_missing_programs_are_named(tmp_path: Path):
    assert lacking("sh", str(tmp_path / "none")) == f"not installed: {tmp_path / 'none'} (apt-get install)"
    assert lacking("sh") == ""


def test_only_debians_yosys_must_read_the_design(tmp_path: Path):
    newer = unreadable(program(tmp_path, "Yosys 0.99 (git sha1 0000000)"))
    assert newer == f"Yosys 0.99 (git sha1 0000000) does not read the design, {YOSYS} does: syntax error"
    assert unreadable(program(tmp_path, f"Yosys {YOSYS} (git sha1 7ce5011c24b)")) == ""
