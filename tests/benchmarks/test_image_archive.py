"""Archives of images, as `docker save` writes them: what they hold, unpacked, and the same for equal builds."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from benchmarks.images.archive import ImageArchive, ImageLayer

BASE = {"etc/": "", "etc/passwd": "root", "opt/": "", "opt/old": "a", "opt/gone": "b", "srv/": "", "srv/file": "c"}
TOP = {"opt/": "", "opt/.wh.gone": "", "opt/old": "new", "srv/": "", "srv/.wh..wh..opq": "", "srv/other": "d"}


def layer(files: dict[str, str], time: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name.rstrip("/"))
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            member.mode, member.size, member.mtime = 0o755, len(text), time
            archive.addfile(member, io.BytesIO(text.encode()))
    return stream.getvalue()


def saved(path: Path, time: int, host: str) -> ImageArchive:
    """An archive of two layers by a builder that leaves traces: times, its host, ids of containers."""
    layers = [layer(BASE, 1000), layer(TOP, time)]
    history = [
        {"created": host, "created_by": "/bin/sh -c #(nop) FROM scratch"},
        {
            "created": host,
            "created_by": f"COPY dir:{hashlib.sha256(host.encode()).hexdigest()} in /opt ",
            "comment": host,
        },
        {"created": host, "created_by": "/bin/sh -c #(nop) USER 10001", "empty_layer": True},
    ]
    config = {"config": {"User": "10001", "Hostname": host}, "container": host, "created": host, "history": history}
    config |= {"architecture": "amd64", "os": "linux"}
    files = {f"{at}.tar": data for at, data in enumerate(layers)}
    files["config.json"] = json.dumps(config).encode()
    manifest = [{"Config": "config.json", "RepoTags": ["edgeflow:1"], "Layers": ["0.tar", "1.tar"]}]
    files["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return ImageArchive(path)


def test_a_layer_has_its_instruction_and_the_size_of_its_files(tmp_path: Path):
    assert saved(tmp_path / "a.tar", 2000, "host").layers() == [
        ImageLayer("FROM scratch", 7),
        ImageLayer(f"COPY dir:{hashlib.sha256(b'host').hexdigest()} in /opt", 4),
    ]


def test_upper_layers_replace_and_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tarfile.TarFile, "chown", lambda *_, **__: None)  # tests need not be root
    (tmp_path / "root").mkdir()
    saved(tmp_path / "a.tar", 2000, "host").unpack(tmp_path / "root")
    files = {
        str(each.relative_to(tmp_path / "root")): each for each in (tmp_path / "root").rglob("*") if each.is_file()
    }
    assert {name: each.read_text() for name, each in files.items()} == {
        "etc/passwd": "root",
        "opt/old": "new",
        "srv/other": "d",
    }


def test_two_builds_of_the_same_files_are_the_same_archive(tmp_path: Path):
    builds = [
        saved(tmp_path / f"saved-{host}", time, host).without_times(tmp_path / host, 1500, "edgeflow:2")
        for time, host in ((2000, "one"), (3000, "other"))
    ]
    assert builds[0].path.read_bytes() == builds[1].path.read_bytes()
    assert builds[0].layers() == [ImageLayer("FROM scratch", 7), ImageLayer("COPY /opt", 4)]
    assert builds[0].manifest["RepoTags"] == ["edgeflow:2"]
    assert builds[0].config["config"] == {"User": "10001"}
    digests = [each.removeprefix("sha256:") for each in builds[0].config["rootfs"]["diff_ids"]]
    with tarfile.open(builds[0].path) as archive:
        for digest, name in zip(digests, builds[0].manifest["Layers"], strict=True):
            data = archive.extractfile(name).read()
            assert hashlib.sha256(data).hexdigest() == digest
            with tarfile.open(fileobj=io.BytesIO(data)) as files:
                assert {member.mtime for member in files} <= {1000, 1500}


def test_another_file_is_rejected(tmp_path: Path):
    (tmp_path / "a.tar").write_text("no archive")
    with pytest.raises(ValueError, match=r"a\.tar is not an archive of one image"):
        ImageArchive(tmp_path / "a.tar").layers()
