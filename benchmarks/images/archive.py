"""An image archive as `docker save` writes it: its configuration, the size of its layers, its files in a folder.

Needs nothing but Python: scripts/build-image reads archives where nothing is installed.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

WHITEOUT = ".wh."
"""Before the name of a file that a layer removes."""
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
        sizes = []
        with tarfile.open(self.path) as archive:
            for name in self.manifest["Layers"]:
                with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                    sizes.append(sum(member.size for member in layer))
        made = [each["created_by"] for each in self.config.get("history", ()) if not each.get("empty_layer")]
        made = [""] * (len(sizes) - len(made)) + made
        return [ImageLayer(_words(line), size) for line, size in zip(made, sizes, strict=True)]

    def unpack(self, folder: Path) -> None:
        """Write the image's files with their owners and modes; needs root, and a folder that is empty."""
        with tarfile.open(self.path) as archive:
            for name in self.manifest["Layers"]:
                with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                    layer.extractall(folder, _kept(layer, folder), numeric_owner=True, filter="tar")


def _json(archive: tarfile.TarFile, name: str) -> Any:
    member = archive.extractfile(name)
    if member is None:
        raise ValueError(f"{name} is not a file")
    return json.load(member)


def _words(instruction: str) -> str:
    """Without the shell that builders put before a command."""
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
