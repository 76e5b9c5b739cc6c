"""The files of a checkpoint that an artifact keeps: all but its weights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from edgeflow.artifacts.manifest import MANIFEST
from edgeflow.errors import ConfigError
from edgeflow.outputs import make_folder

TEXTS = (".json", ".jinja", ".model", ".txt", ".md")
INDEX = ".index.json"
STATISTICS = ".safetensors"
PIPELINES = "policy_*processor.json"
MOST_BYTES = 64 << 20


def check_out(out: Path, folder: Path) -> None:
    """Make the folder of an artifact; ConfigError for one that holds something else."""
    if out.resolve() == folder.resolve():
        raise ConfigError(f"out: {out} is the folder of the checkpoint; give another one")
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file():
        raise ConfigError(f"out: {out} holds other files; give a new folder, or one of an artifact, which is replaced")
    make_folder(out)


def clear(out: Path) -> None:
    """Remove an earlier artifact's graphs and manifest."""
    for file in (out / MANIFEST, *out.glob("*.onnx"), *out.glob("*.data")):
        file.unlink(missing_ok=True)


def copy_texts(folder: Path, out: Path) -> None:
    """Copy configuration, tokenizer, processors and their statistics."""
    for file in _texts(folder):
        target = out / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _texts(folder: Path) -> Iterator[Path]:
    pipelines = "".join(file.read_text(encoding="utf-8") for file in folder.glob(PIPELINES))
    for file in sorted([*folder.glob("*"), *folder.glob("*/*")]):
        text = file.suffix in TEXTS and not file.name.endswith(INDEX)
        statistics = file.suffix == STATISTICS and f'"{file.name}"' in pipelines
        if file.is_file() and (text or statistics) and file.stat().st_size <= MOST_BYTES:
            yield file
