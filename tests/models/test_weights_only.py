"""Files as torch.save writes them: tensors in plain containers are read, all else is refused by file and type."""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import struct
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeflow.models.weights_only import read_state_dict, read_weights_only
from edgeflow_client.errors import CheckpointError

MOST = 1 << 20
FORMATS = (True, False)  # a zip archive, and the format before it


class Code:
    """An object whose pickle calls a function."""

    def __init__(self, function=os.mkdir, *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self):
        return self._call


class Plain:
    """An object without any code."""


def saved(path: Path, value: object, *, archive: bool = True) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=archive)
    return path


def refusal(path: Path, most: int = MOST) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_weights_only(path, most)
    assert str(path) in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")


def repacked(path: Path, change, compression: int = zipfile.ZIP_STORED) -> Path:
    """The archive with other records: change(name, data) → data."""
    with zipfile.ZipFile(path) as archive:
        records = [(each.filename, archive.read(each)) for each in archive.infolist()]
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in records:
            archive.writestr(name, change(name, data))
    return path


@pytest.mark.parametrize("archive", FORMATS)
def test_a_single_tensor_is_read(tmp_path: Path, archive: bool):
    tensor = torch.arange(6.0).view(2, 3).bfloat16()
    assert torch.equal(read_weights_only(saved(tmp_path / "a.pt", tensor, archive=archive), MOST), tensor)


@pytest.mark.parametrize("archive", FORMATS)
def test_nested_containers_are_read(tmp_path: Path, archive: bool):
    value = {
        "model": collections.OrderedDict(weight=torch.ones(2), deep=[(torch.zeros(1), None, True)]),
        "step": 3,
        "rate": 0.5,
        7: "text",
        "parameter": torch.nn.Parameter(torch.ones(1)),
    }
    found = read_weights_only(saved(tmp_path / "a.pt", value, archive=archive), MOST)
    assert torch.equal(found["model"]["weight"], torch.ones(2)) and found["model"]["deep"][0][1:] == (None, True)
    assert (found["step"], found["rate"], found[7]) == (3, 0.5, "text")


@pytest.mark.parametrize("archive", FORMATS)
@pytest.mark.parametrize("nested", [False, True])
def test_code_is_rejected_by_name_and_does_not_run(tmp_path: Path, archive: bool, nested: bool):
    trace = tmp_path / "ran"
    value = Code(os.mkdir, str(trace))
    saved(tmp_path / "a.pt", {"weight": torch.ones(2), "inner": [value]} if nested else value, archive=archive)
    assert refusal(tmp_path / "a.pt") == (
        "FILE holds posix.mkdir: only tensors and plain containers are read, so save only those"
    )
    assert not trace.exists()


def test_code_in_a_plain_pickle_does_not_run(tmp_path: Path):
    trace = tmp_path / "ran"
    (tmp_path / "a.pt").write_bytes(pickle.dumps(Code(os.mkdir, str(trace)), protocol=2))
    assert "posix.mkdir" in refusal(tmp_path / "a.pt")
    assert not trace.exists()


@pytest.mark.parametrize("archive", FORMATS)
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Plain(), "tests.models.test_weights_only.Plain"),
        (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
        ({"x": {1, 2}}, "a value of type set"),
        ({"x": torch.float32}, "a value of type torch.dtype"),
        ([torch.Size([1])], "a value of type torch.Size"),
        (collections.Counter("aa"), "a value of type collections.Counter"),
        ({"x": b"bytes"}, "bytes"),
        ({"x": 2j}, "complex"),
        ({(1, 2): "x"}, "a key of type tuple"),
        (np.ones(2), "numpy"),
        ({"x": torch.eye(2).to_sparse()}, "a tensor that is not dense (torch.sparse_coo, torch.float32)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_objects_are_rejected_by_type(tmp_path: Path, value: object, named: str, archive: bool):
    assert named in refusal(saved(tmp_path / "a.pt", value, archive=archive))


@pytest.mark.parametrize("archive", FORMATS)
@pytest.mark.parametrize("kept", [0, 3, 20, 200, -1, -40])
def test_a_truncated_file_is_rejected(tmp_path: Path, kept: int, archive: bool):
    path = saved(tmp_path / "a.pt", {"weight": torch.ones(64)}, archive=archive)
    path.write_bytes(path.read_bytes()[:kept])
    assert refusal(path) in (
        "FILE is truncated or damaged: copy the file again",
        "FILE is truncated, or not a file of tensors as torch.save writes it: copy the file again",
    )


@pytest.mark.parametrize("content", [b"PK\x03\x04" + bytes(200), b"\x80\x02}.", b"version https://git-lfs", bytes(600)])
def test_other_files_are_rejected(tmp_path: Path, content: bytes):
    (tmp_path / "a.pt").write_bytes(content)
    assert "truncated" in refusal(tmp_path / "a.pt")


def test_a_missing_file_and_a_directory_are_rejected(tmp_path: Path):
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "none.pt", "No such file or directory")):
        assert refusal(path) == f"FILE cannot be read: {why}: copy the file again"


def test_a_tar_file_is_rejected_and_not_unpacked(tmp_path: Path):
    (tmp_path / "storages").write_bytes(bytes(8))
    with tarfile.open(tmp_path / "a.pt", "w") as tar:
        tar.add(tmp_path / "storages", "storages")
    assert "truncated, or not a file of tensors" in refusal(tmp_path / "a.pt")


@pytest.mark.parametrize("archive", FORMATS)
def test_the_size_is_checked_before_anything_is_read(tmp_path: Path, archive: bool, monkeypatch):
    path = saved(tmp_path / "a.pt", torch.ones(1000), archive=archive)
    size = path.stat().st_size
    monkeypatch.setattr(torch, "load", None)
    expected = f"FILE has {size} bytes, expected at most {size - 1}: it belongs to another model"
    assert refusal(path, size - 1) == expected


def test_an_archive_that_unpacks_to_more_is_rejected_before_it_is_read(tmp_path: Path, monkeypatch):
    path = saved(tmp_path / "a.pt", torch.zeros(1 << 18))
    repacked(path, lambda _, data: data, zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(torch, "load", None)
    assert path.stat().st_size < 1 << 14
    assert refusal(path, 1 << 16).startswith("FILE: the record 'a/data.pkl' is compressed")


def test_records_that_lie_about_their_size_are_rejected(tmp_path: Path, monkeypatch):
    """The directory at the end of an archive names more bytes than the file has."""
    path = saved(tmp_path / "a.pt", torch.zeros(16))
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = struct.pack("<I", 1 << 30)
    path.write_bytes(data)
    monkeypatch.setattr(torch, "load", None)
    assert f"expected at most 65536 of {MOST}" in refusal(path)


def test_a_view_with_more_numbers_than_the_file_is_rejected(tmp_path: Path):
    path = saved(tmp_path / "a.pt", {"weight": torch.ones(1).expand(1 << 20, 1 << 10)})
    assert path.stat().st_size < 4096
    assert refusal(path) == f"FILE: its tensors take {1 << 32} bytes, expected at most {MOST}"


def test_a_storage_that_is_shorter_than_its_tensor_reads_nothing_beyond_the_file(tmp_path: Path):
    path = saved(tmp_path / "a.pt", torch.ones(1 << 16))
    repacked(path, lambda name, data: data[:4] if name.endswith("data/0") else data)
    assert "truncated" in refusal(path)


def test_a_container_that_holds_itself_ends(tmp_path: Path):
    value: list[object] = [torch.ones(1)]
    value.append(value)
    assert read_weights_only(saved(tmp_path / "a.pt", value), MOST)[1] is not None


def test_a_container_that_is_held_often_is_visited_once(tmp_path: Path):
    value: list[object] = [torch.ones(1)]
    for _ in range(60):
        value = [value, value]
    read_weights_only(saved(tmp_path / "a.pt", value), MOST)


VALUE = {"module.a": torch.arange(8.0), "b": [1, "x", (2.5, None)], "c": torch.ones(2, 2).bfloat16()}


@settings(max_examples=150, deadline=None)
@given(st.booleans(), st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=5))
def test_a_damaged_file_is_read_or_rejected(archive: bool, damage: list[tuple[float, int]]):
    with tempfile.TemporaryDirectory() as folder:
        path = saved(Path(folder) / "a.pt", VALUE, archive=archive)
        data = bytearray(path.read_bytes())
        for place, byte in damage:
            data[int(place * len(data))] = byte
        path.write_bytes(data)
        with contextlib.suppress(CheckpointError):
            read_weights_only(path, MOST)


class Unprintable(tuple):
    """A key that may neither be printed nor hashed once it is there."""

    calls = 0

    def __hash__(self) -> int:
        type(self).calls += 1
        return 0

    __repr__ = __str__ = None


def test_a_bad_key_is_reported_only_by_its_type(tmp_path: Path, monkeypatch):
    path = saved(tmp_path / "a.pt", torch.ones(1))
    for key in (Unprintable(), None, 1.5, True):
        monkeypatch.setattr(torch, "load", lambda *_, key=key, **__: {"x": [{key: torch.ones(1)}]})
        before = Unprintable.calls
        kind = type(key)
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        assert refusal(path) == f"FILE has a key of type {name}: only names and integers are read"
        assert Unprintable.calls == before + (kind is Unprintable)  # the dictionary of the test itself


def test_a_state_dict_loses_a_prefix_that_all_names_have(tmp_path: Path):
    tensors = {"module.fc1.weight": torch.ones(1), "module.fc1.bias": torch.zeros(1)}
    path = saved(tmp_path / "a.pt", collections.OrderedDict(tensors))
    assert list(read_state_dict(path, MOST, strip="module.")) == ["fc1.weight", "fc1.bias"]
    assert list(read_state_dict(path, MOST)) == list(tensors)
    mixed = saved(tmp_path / "b.pt", {**tensors, "fc2.bias": torch.ones(1)})
    assert list(read_state_dict(mixed, MOST, strip="module.")) == [*tensors, "fc2.bias"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(1), "FILE holds a value of type torch.Tensor, expected tensors by name: copy the file again"),
        ({}, "FILE holds a value of type dict, expected tensors by name: copy the file again"),
        ({"step": 3}, "FILE: 'step' is a value of type int, expected a tensor"),
        ({"s" * 90: 3}, f"FILE: '{'s' * 80}' is a value of type int, expected a tensor"),
        ({3: torch.ones(1)}, "FILE has a key of type int, expected tensors by name"),
    ],
)
def test_a_state_dict_is_tensors_by_name(tmp_path: Path, value: object, message: str):
    path = saved(tmp_path / "a.pt", value)
    with pytest.raises(CheckpointError) as caught:
        read_state_dict(path, MOST)
    assert str(caught.value).replace(str(path), "FILE") == message
