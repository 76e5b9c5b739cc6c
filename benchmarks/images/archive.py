"""An image archive as `docker save` writes it: its configuration, the size of its layers, its files in a folder.

Needs nothing but Python: scripts/build-image reads archives where nothing is installed.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any

WHITEOUT = ".wh."
"""Before the name of a file that a layer removes."""
KEPT = ("architecture", "config", "history", "os", "variant")
OF_A_CONTAINER = ("Hostname", "Image")
"""Fields of a configuration that differ from build to build."""
COPIED = re.compile(r"(dir|file|multi):[0-9a-f]{64} in ")
"""A builder's name for the files of a COPY, which has their times in it."""
OPAQUE = ".wh..wh..opq"
"""A folder's content in lower layers is removed."""


@dataclass(frozen=True)
class ImageLayer:
    """A layer of an image."""

    instruction: str
    """The line of its Dockerfile."""
    bytes: int
    """Size of its files, unpacked."""


@dataclass(frozen=True)
class ImageArchive:
    """An archive on disk; ValueError if it is something else."""

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        try:
            with tarfile.open(self.path) as archive:
                (manifest,) = _json(archive, "manifest.json")
        except (tarfile.TarError, KeyError, ValueError) as error:
            raise ValueError(
                f"{self.path} is not an archive of one image, as `docker save` writes it: {error}"
            ) from None
        return dict(manifest)

    @cached_property
    def config(self) -> dict[str, Any]:
        """Architecture, history, and under "config" the user, environment, command and health check."""
        with tarfile.open(self.path) as archive:
            return dict(_json(archive, self.manifest["Config"]))

    def layers(self) -> list[ImageLayer]:
        """The layers in order; a base that hides its history comes first as one without an instruction."""
        sizes, names = [], self.manifest["Layers"]
        with tarfile.open(self.path) as archive:
            for name in names:
                with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                    sizes.append(sum(member.size for member in layer))
        made = [each["created_by"] for each in self.config.get("history", ()) if not each.get("empty_layer")]
        made = [""] * (len(sizes) - len(made)) + made
        return [ImageLayer(_words(line), size) for line, size in zip(made, sizes, strict=True)]

    def without_times(self, path: Path, latest: int, tag: str) -> ImageArchive:
        """Write the image as an archive that is the same for each build of the same files: no file is later than
        `latest` (seconds since 1970), and no builder, host or container is named. tag: the image's name."""
        config = {name: value for name, value in self.config.items() if name in KEPT}
        config["config"] = {name: value for name, value in config["config"].items() if name not in OF_A_CONTAINER}
        config["created"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(latest))
        layers = []
        with (
            tarfile.open(self.path) as archive,
            tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as written,
            tempfile.TemporaryFile() as layer,
        ):
            for name in self.manifest["Layers"]:
                layer.seek(0)
                layer.truncate()
                _clamped(archive.extractfile(name), layer, latest)
                digest, size = _digest(layer), layer.tell()
                layers.append(digest)
                layer.seek(0)
                _add(written, f"{digest}.tar", layer, size)
            config["rootfs"] = {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in layers]}
            config["history"] = [
                {
                    "created": config["created"],
                    "created_by": COPIED.sub("", each.get("created_by", "")),
                    "empty_layer": each.get("empty_layer", False),
                }
                for each in config.get("history", ())
            ]
            text = json.dumps(config, sort_keys=True).encode()
            name = f"{hashlib.sha256(text).hexdigest()}.json"
            _add(written, name, io.BytesIO(text), len(text))
            manifest = [{"Config": name, "RepoTags": [tag], "Layers": [f"{x}.tar" for x in layers]}]
            text = json.dumps(manifest).encode()
            _add(written, "manifest.json", io.BytesIO(text), len(text))
        return ImageArchive(path)

    def unpack(self, folder: Path) -> None:
        """Write the image's files with their owners and modes; needs root, and a folder that is empty."""
        with tarfile.open(self.path) as archive:
            for name in self.manifest["Layers"]:
                with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                    if hasattr(tarfile, "fully_trusted_filter"):  # Python 3.11.4; others change modes
                        layer.extraction_filter = tarfile.fully_trusted_filter
                    layer.extractall(folder, _kept(layer, folder), numeric_owner=True)


def _clamped(layer: IO[bytes], target: IO[bytes], latest: int) -> None:
    """Copy a layer; files that were made in the build get its time."""
    with (
        tarfile.open(fileobj=layer) as read,
        tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as written,
    ):
        for member in read:
            member.mtime = int(min(member.mtime, latest))
            member.pax_headers = {name: value for name, value in member.pax_headers.items() if "time" not in name}
            written.addfile(member, read.extractfile(member) if member.isreg() else None)


def _digest(file: IO[bytes]) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _add(archive: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, file)


def _json(archive: tarfile.TarFile, name: str) -> Any:
    member = archive.extractfile(name)
    if member is None:
        raise ValueError(f"{name} is not a file")
    return json.load(member)


def _words(instruction: str) -> str:
    """Without the arguments and the shell that builders put before a command."""
    instruction = re.sub(r"^\|\d+ .*?(?=/bin/sh -c )", "", instruction)
    for before in ("/bin/sh -c #(nop) ", "/bin/sh -c "):
        instruction = instruction.removeprefix(before)
    return " ".join(instruction.removesuffix("# buildkit").split())


def _kept(layer: tarfile.TarFile, folder: Path) -> Iterator[tarfile.TarInfo]:
    """The files of a layer; what it removes from lower layers is removed from the folder."""
    for member in layer:
        path = PurePosixPath(member.name)
        if path.name == OPAQUE:
            for each in (folder / path.parent).iterdir():
                _remove(each)
        elif path.name.startswith(WHITEOUT):
            _remove(folder / path.parent / path.name.removeprefix(WHITEOUT))
        else:
            target = folder / path
            if target.is_symlink() or (target.exists() and target.is_dir() != member.isdir()):
                _remove(target)  # the layer above has something else under this name
            yield member


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
