"""Places that commands write to."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from edgeflow.lab.outputs import check_writable, make_folder, text_file, write_tensors
from edgeflow_client.errors import ConfigError


def test_folders_are_made_and_kept(tmp_path: Path):
    out = tmp_path / "a" / "b"
    check_writable(out)
    assert not out.exists()
    for _ in range(2):
        make_folder(out)
        assert out.is_dir()


def test_a_file_replaces_the_one_before(tmp_path: Path):
    for told in ("longer", "é"):
        with text_file(tmp_path / "new" / "file") as file:
            file.write(told)
    assert (tmp_path / "new" / "file").read_text(encoding="utf-8") == "é"


def test_places_that_cannot_be_written_to_are_rejected(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "inside"):
        with pytest.raises(ConfigError, match=r"out: .*file is not a folder that can be written to"):
            make_folder(place)
    for place in (tmp_path, Path("/dev/full")):
        with pytest.raises(ConfigError, match=r"out: .* is not a regular file"), text_file(place):
            pass
    with pytest.raises(ConfigError, match=r"out: /proc/"):
        make_folder(Path("/proc/edgeflow"))


def test_a_file_that_could_not_be_written_whole_is_the_earlier_one_or_none(tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a full disk, as far as a test may have one
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        for earlier in ("", "earlier"):
            if earlier:
                (tmp_path / "logs").write_text(earlier)
            with (
                pytest.raises(ConfigError, match="cannot be written: File too large"),
                text_file(tmp_path / "logs") as file,
            ):
                file.write("a line\n" * 100_000)
            assert [each.read_text() for each in tmp_path.iterdir()] == ([earlier] if earlier else [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_writer_that_is_killed_leaves_no_file_of_the_final_name(tmp_path: Path):
    out = tmp_path / "logs"
    pid = os.fork()
    if pid == 0:
        with text_file(out) as file:
            file.write("a line\n")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not out.exists() and len(list(tmp_path.iterdir())) == 1


@contextmanager
def masked(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_mode_of_tensors_is_that_of_any_new_file(mask: int, mode: int, tmp_path: Path):
    """Left as they are by a run that was killed, neither the file nor its draft keeps its mode."""
    path = tmp_path / "model.safetensors"
    for left in (path, tmp_path / "model.safetensors.partial"):
        left.touch(0o640)
    with masked(mask):
        write_tensors(path, {"a": torch.arange(6).view(2, 3).t()}, {"format": "pt"})
    assert path.stat().st_mode & 0o777 == mode
    assert load_file(path)["a"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]
