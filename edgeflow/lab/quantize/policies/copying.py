"""The files of a policy besides its weights, which its quantised copy keeps."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from edgeflow.lab.quantize.files.source import Source
from edgeflow.model_paths import HUB_FILES
from edgeflow.models.checkpoint import CONFIG_FILE
from edgeflow.text.weight_files import INDEX_FILE


def copy_rest(source: Source, out: Path) -> None:
    """Copy dataset statistics, processors, tokenizers and the like, those in folders below as well."""
    out.mkdir(parents=True, exist_ok=True)
    written = {*source.files, source.folder / CONFIG_FILE, source.folder / INDEX_FILE}
    for path in sorted(set(_served_files(source.folder)) - written):
        if out.resolve() in path.resolve().parents:
            continue
        copy = out / path.relative_to(source.folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def _served_files(folder: Path) -> Iterator[Path]:
    """Files of the kinds that checkpoints are read from; none in hidden folders."""
    for pattern in HUB_FILES:
        for path in folder.rglob(pattern):
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
                yield path
