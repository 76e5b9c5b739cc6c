"""`edgeflow doctor` on Triton's tools: the assembler and the driver's library, where Triton looks for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeflow.commands import doctor
from edgeflow.commands.doctor import CheckOutcome

pytest.importorskip("triton")


@pytest.fixture
def assembler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ptxas that says it is of CUDA 12.6."""
    path = tmp_path / "ptxas"
    path.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.6, V12.6.68'\n")
    path.chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(path))
    return path


def test_the_bundled_assembler_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    monkeypatch.setattr(doctor, "_driver_version", lambda: None)
    (finding,) = doctor._ptxas()
    assert finding.verdict is CheckOutcome.OK and "triton/backends/nvidia/bin/ptxas" in finding.found


@pytest.mark.parametrize(
    ("driver", "verdict"), [((12, 6), CheckOutcome.OK), ((13, 0), CheckOutcome.OK), ((12, 2), "optional")]
)
def test_an_assembler_newer_than_the_driver_is_reported(assembler: Path, monkeypatch, driver, verdict):
    monkeypatch.setattr(doctor, "_driver_version", lambda: driver)
    (finding,) = doctor._ptxas()
    assert finding.verdict == verdict and finding.found.startswith(f"12.6 at {assembler}")
    assert (finding.advice != "") is ("newer than the driver's CUDA 12.2" in finding.found) is (driver == (12, 2))


def test_an_assembler_that_is_not_there_is_reported(assembler: Path):
    assembler.unlink()
    (finding,) = doctor._ptxas()
    assert finding.verdict is CheckOutcome.OPTIONAL and finding.found == f"{assembler} does not run"
    assert finding.advice == "export TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas"


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No libcuda that ldconfig or the environment knows; the folders of L4T are below."""
    monkeypatch.delenv("TRITON_LIBCUDA_PATH", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(doctor, "_ldconfig_folders", list)
    monkeypatch.setattr(doctor, "L4T_FOLDERS", (tmp_path / "nvidia", tmp_path / "tegra"))
    (tmp_path / "tegra").mkdir()
    return tmp_path


def test_libcuda_of_l4t_is_found_and_how_to_name_it(nowhere: Path, monkeypatch: pytest.MonkeyPatch):
    (finding,) = doctor._libcuda()
    assert finding.verdict is CheckOutcome.OPTIONAL and finding.found == "not found"
    (nowhere / "tegra" / "libcuda.so.1").touch()
    (finding,) = doctor._libcuda()
    assert finding.verdict is CheckOutcome.OPTIONAL
    name, _, value = finding.advice.removeprefix("export ").partition("=")
    monkeypatch.setenv(name, str(nowhere / "nvidia"))
    assert "where Triton does not look" in doctor._libcuda()[0].found
    monkeypatch.setenv(name, value)
    assert doctor._libcuda() == [doctor.CheckLine("libcuda", CheckOutcome.OK, f"{nowhere}/tegra/libcuda.so.1")]
    monkeypatch.delenv(name)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{value}")
    assert doctor._libcuda()[0].verdict is CheckOutcome.OK


def test_what_runs_apart_is_reported_by_its_last_line():
    assert doctor._run_apart("it", "pass", 30, "done", "").found == "done"
    failed = doctor._run_apart("it", "raise OSError('no such device')", 30, "done", "plug it in")
    assert (failed.verdict, failed.found, failed.advice) == (
        CheckOutcome.MISSING,
        "OSError: no such device",
        "plug it in",
    )
