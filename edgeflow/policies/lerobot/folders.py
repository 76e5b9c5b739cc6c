"""Folders that a checkpoint names."""

from __future__ import annotations

from pathlib import Path


def local_folder(directory: Path, name: str) -> Path | None:
    """A folder of the checkpoint by its relative name; None where there is none. Names that lead out of it, or that no
    file system takes, are none."""
    relative = Path(name)
    if relative.is_absolute() or ".." in relative.parts:
        return None
    folder = directory / relative
    try:
        return folder if folder.is_dir() else None
    except (OSError, ValueError):
        return None
