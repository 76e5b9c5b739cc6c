"""The folder of an artifact, and the files of a checkpoint that it keeps: all except the weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from edgeflow.artifacts.manifest import FORMAT, MANIFEST, VERSION, Manifest
from edgeflow.lab.outputs import make_folder, writing
from edgeflow_client.errors import ConfigError

TEXTS = (".json", ".jinja", ".model", ".txt", ".md")
INDEX = ".index.json"
STATISTICS = ".safetensors"
PIPELINES = "policy_*processor.json"
LEVELS = ("*", "*/*", "*/*/*")
"""Levels of folders that are searched: a tokenizer may lie in a folder of its hub name, owner/name."""
MOST_BYTES = 64 << 20
DRAFT = ".partial"
"""The folder inside an artifact's folder in which a new artifact is written."""


def check_out(out: Path, folder: Path) -> None:
    """Make the folder of an artifact; ConfigError if it holds something else."""
    if out.resolve() == folder.resolve():
        raise ConfigError(f"out: {out} is the folder of the checkpoint; give another one")
    others = out.is_dir() and any(each.name != DRAFT for each in out.iterdir())
    # an interrupted change-over leaves only the manifest of the draft
    ours = (out / MANIFEST).is_file() or (out / DRAFT / MANIFEST).is_file()
    if others and not ours:
        raise ConfigError(f"out: {out} holds other files; give a new folder, or one of an artifact, which is replaced")
    make_folder(out)


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A folder to write an artifact to; once it is complete, it replaces an earlier one in `out`.

    Until then the earlier one remains. The change-over removes its manifest first and moves the new one last: if it is
    interrupted, neither exists, and `out` is rejected as a model until the export is run again. ConfigError if the
    folder cannot be written.
    """
    draft = out / DRAFT
    with writing(out):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        try:
            yield draft
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        _clear(out)
        _take_over(draft, out)
        shutil.rmtree(draft, ignore_errors=True)


def _clear(out: Path) -> None:
    """Remove an earlier artifact: its manifest first, then graphs, weights, and the files kept of its checkpoint."""
    kept = [file for file in _texts(out) if DRAFT not in file.relative_to(out).parts]
    for file in (out / MANIFEST, *out.glob("*.onnx"), *out.glob("*.data"), *kept):
        file.unlink(missing_ok=True)


def _take_over(draft: Path, out: Path) -> None:
    """Move all files, the manifest last."""
    files = [file for file in draft.rglob("*") if file.is_file()]
    for file in sorted(files, key=lambda file: file == draft / MANIFEST):
        target = out / file.relative_to(draft)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)


def copy_texts(folder: Path, out: Path) -> None:
    """Copy configuration, tokenizer, processors and their statistics."""
    for file in _texts(folder):
        target = out / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _texts(folder: Path) -> Iterator[Path]:
    pipelines = "".join(file.read_text(encoding="utf-8") for file in folder.glob(PIPELINES))
    for file in sorted(file for level in LEVELS for file in folder.glob(level)):
        text = file.suffix in TEXTS and not file.name.endswith(INDEX)
        statistics = file.suffix == STATISTICS and f'"{file.name}"' in pipelines
        if file.is_file() and (text or statistics) and file.stat().st_size <= MOST_BYTES:
            yield file


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write artifact.json."""
    values = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    (folder / MANIFEST).write_text(json.dumps(values, indent=1) + "\n")
