"""The folder of the chat front's socket: a new one for each service, and none stays of services that were killed."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from edgeflow.config.service import ServiceConfig
from edgeflow.service.children.launch import SOCKET, Listeners, make_private_folder
from edgeflow_client.errors import AddressError

OLD = (0, 0)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left(place: Path, name: str, *, listening: bool = False) -> tuple[Path, socket.socket]:
    """A folder of an earlier service, and its socket."""
    folder = place / f"edgeflow-{name}"
    folder.mkdir(mode=0o700)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(folder / SOCKET))
    if listening:
        sock.listen(1)
    os.utime(folder, OLD)
    return folder, sock


def test_only_folders_of_killed_services_are_removed(place: Path):
    dead, sock = left(place, "dead")
    sock.close()
    empty = place / "edgeflow-demo-x"  # of `edgeflow demo`, whose service is not ready yet
    empty.mkdir(mode=0o700)
    os.utime(empty, OLD)
    living, listener = left(place, "living", listening=True)
    foreign, other = left(place, "foreign")
    other.close()
    (foreign / "notes").touch()
    os.utime(foreign, OLD)
    open_to_all = place / "edgeflow-open"
    open_to_all.mkdir()
    os.utime(open_to_all, OLD)
    young, starting = left(place, "young")
    os.utime(young)
    elsewhere = place / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (place / "edgeflow-link").symlink_to(elsewhere)
    (place / "edgeflow-file").touch()
    with closing(listener), closing(starting):
        made = make_private_folder()
        assert not dead.exists()
        kept = {living, empty, foreign, open_to_all, young, place / "edgeflow-link", place / "edgeflow-file", made}
        assert {each for each in place.iterdir() if each != elsewhere} == kept and elsewhere.is_dir()
        assert (living / SOCKET).exists() and (foreign / SOCKET).exists() and (young / SOCKET).exists()
        assert made.stat().st_mode & 0o777 == 0o700


def test_a_file_in_place_of_the_socket_is_kept(place: Path):
    folder = place / "edgeflow-x"
    folder.mkdir(mode=0o700)
    (folder / SOCKET).write_text("mine")
    os.utime(folder, OLD)
    make_private_folder()
    assert (folder / SOCKET).read_text() == "mine"


def test_no_folder_for_temporary_files_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    values = {"http": {"port": 0}, "health": {"port": 0}, "frontends": {"port": 0}}
    with pytest.raises(AddressError, match=r"^chat: no folder for its socket: No such file or directory: set TMPDIR"):
        Listeners(ServiceConfig.model_validate(values))
