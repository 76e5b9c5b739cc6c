"""Files that an operator names: a device has no end, and a pipe never says anything."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeflow.commands.conversation import read_text
from edgeflow.config.service import load_config
from edgeflow.engine.control.profile import load_profile
from edgeflow.kernels.table.overlay import read_overlay
from edgeflow.lab.verify.bundle import read_image
from edgeflow.models.checkpoint import read_tensors
from edgeflow.models.weights_only import read_weights_only
from edgeflow.service.host.files import read_file
from edgeflow.text.checkpoint_json import read_json_value
from edgeflow_client.connection.credentials import Credentials
from edgeflow_client.errors import ConfigError, EdgeflowError
from edgeflow_client.files import open_regular, read_regular

READERS: dict[str, Callable[[Path], object]] = {
    "operators": read_overlay,
    "profile": lambda path: load_profile(str(path)),
    ".pt": lambda path: read_weights_only(path, 1 << 40),
    "safetensors": read_tensors,
    "JSON of a checkpoint": read_json_value,
    "image": read_image,
    "tokens": lambda path: read_file("tokens_file", str(path)),
    "credentials": lambda path: Credentials.of(None, None, None, path),
    "system message": lambda path: read_text(path, "system_file"),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_rejected_at_once(tmp_path: Path, kind: str, read: Callable[[Path], object]):
    path = {"pipe": tmp_path / "pipe", "device": Path("/dev/zero"), "folder": tmp_path}[kind]
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(EdgeflowError) as caught:
        read(path)
    assert str(path) in caught.value.text


@pytest.mark.parametrize("of_folder", [False, True])
def test_a_configuration_may_be_a_pipe_but_no_device_and_no_folder(tmp_path: Path, of_folder: bool):
    with pytest.raises(ConfigError, match=r"config: .*(exceeds the limit|Is a directory)"):
        load_config(tmp_path if of_folder else Path("/dev/zero"), {})


def test_a_regular_file_is_read_up_to_its_limit(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_regular(link, 5) == b"12345"
    with pytest.raises(OSError, match="has more than 4 bytes"):
        read_regular(path, 4)
    with open_regular(path) as file:
        assert file.seekable() and os.get_inheritable(file.fileno()) is False
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="Is not a regular file"):
        open_regular(Path("/dev/null"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
