"""The library of products: built for these sources alone, one OpenMP runtime, a reason where it is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgeflow.kernels.native import build
from edgeflow.kernels.native import linear as library


def test_other_sources_have_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sources = tmp_path / "sources"
    shutil.copytree(build.FOLDER, sources, ignore=shutil.ignore_patterns("built", "__pycache__"))
    now = build.library_path()
    monkeypatch.setattr(build, "FOLDER", sources)
    assert build.library_path() == now
    (sources / "products.h").write_text((sources / "products.h").read_text() + "// changed\n")
    assert build.library_path() != now


def test_a_library_of_other_sources_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "products-0123456789abcdef.so").touch()
    monkeypatch.setattr(library, "library_path", lambda: build.library_path(tmp_path))
    assert "not built" in library.missing.__wrapped__()


def test_a_library_that_does_not_load_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    broken = tmp_path / "products.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(library, "library_path", lambda: broken)
    monkeypatch.setattr(library, "library", library.library.__wrapped__)
    assert "do not load" in library.missing.__wrapped__()


def test_without_a_compiler_the_reason_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(OSError, match="install g\\+\\+ or set CXX"):
        build.build(tmp_path)
    with pytest.raises(SystemExit, match="were not built: there is no C"):
        build.main()


@pytest.mark.skipif(bool(library.missing()) or not build.MAPPED.is_file(), reason="nothing is loaded")
def test_the_products_share_the_openmp_runtime_of_torch():
    library.library()
    files = {line.split()[-1] for line in build.MAPPED.read_text().splitlines()}
    runtimes = [file for file in files if Path(file).name.startswith(build.RUNTIMES)]
    assert runtimes == [str(build.openmp_runtime())]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_machine_has_the_portable_products(machine: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(build.platform, "machine", lambda: machine)
    sets = build.instruction_sets()
    assert sets["portable"] == () and (len(sets) == len(library.SETS)) is (machine == "x86_64")


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
def test_with_a_compiler_the_native_products_serve():
    """Without this, a broken build would only skip their tests."""
    assert library.missing() == "", "run scripts/setup"
