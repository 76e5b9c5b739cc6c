"""Places that commands write to."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeflow.errors import ConfigError
from edgeflow.outputs import check_writable, make_folder, text_file


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


def test_places_that_cannot_be_written_to_are_refused(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "inside"):
        with pytest.raises(ConfigError, match=r"out: .*file is not a folder that can be written to"):
            make_folder(place)
    with pytest.raises(ConfigError, match=r"out: .* cannot be written: Is a directory"), text_file(tmp_path):
        pass
    told = pytest.raises(ConfigError, match=r"out: /dev/full cannot be written: No space left")
    with told, text_file(Path("/dev/full")) as full:
        full.write("x" * 100_000)
    with pytest.raises(ConfigError, match=r"out: /proc/"):
        make_folder(Path("/proc/edgeflow"))
