"""The state of a search, in its output folder: the choices for each block, so that a killed run can resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from edgeflow.lab.outputs import check_writable, write_tensors
from edgeflow.lab.quantize.search.choices import BlockChoice, GroupChoice
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import CheckpointError, ConfigError

FOLDER = ".quantize"
SETTINGS_FILE = "settings.json"


class SearchState:
    """The finished blocks of a search."""

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        """Start in a new or empty folder, or resume a run with the same settings; ConfigError for a folder with other
        contents or other settings.

        settings: JSON values.
        """
        self._folder = out / FOLDER
        check_folder(out, {**dict.fromkeys(_kept_settings(out)), **settings})
        self._folder.mkdir(parents=True, exist_ok=True)
        _replace(self._folder / SETTINGS_FILE, json.dumps(dict(settings), indent=2))

    def load(self, index: int) -> BlockChoice | None:
        """The choices for a block, None if it is not finished; CheckpointError for an unreadable file."""
        path = self._path(index)
        return read_choice(path) if path.is_file() else None

    def save(self, index: int, choice: BlockChoice) -> None:
        """Save the choices for a block; a run that is killed here saves all of them or none."""
        write_choice(self._path(index), choice)

    def remove(self) -> None:
        """Delete the state, once the checkpoint is complete."""
        shutil.rmtree(self._folder)

    def _path(self, index: int) -> Path:
        return self._folder / f"block-{index:04}.safetensors"


def check_folder(out: Path, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for a folder in which a search cannot start or resume, like SearchState. Nothing is written.

    settings: those known so far.
    """
    check_writable(out)
    kept = _kept_settings(out)
    if not kept and out.exists() and any(out.iterdir()):
        raise ConfigError(f"out: {out} is not empty and holds no search to resume: give a new folder")
    changed = sorted(name for name in settings if kept and kept.get(name) != settings[name])
    if changed:
        differences = "; ".join(f"{name} was {kept.get(name)!r}, is {settings[name]!r}" for name in changed)
        raise ConfigError(f"out: {out} holds a search with other settings ({differences}): give a new folder")


def _kept_settings(out: Path) -> dict[str, Any]:
    """The settings of the search in a folder; empty if it has none."""
    path = out / FOLDER / SETTINGS_FILE
    return read_json(path) if path.is_file() else {}


def write_choice(path: Path, choice: BlockChoice) -> None:
    """Write the choices for a block as safetensors; names and ratios are its metadata."""
    tensors: dict[str, Tensor] = {f"limits.{name}": limits for name, limits in (choice.limits or {}).items()}
    for number, group in enumerate(choice.groups):
        tensors |= {f"{number}.scales": group.scales, f"{number}.losses": group.losses}
    groups = [{"previous": each.previous, "scaled": each.scaled, "ratio": each.ratio} for each in choice.groups]
    write_tensors(path, tensors, {"groups": json.dumps(groups)})


def read_choice(path: Path) -> BlockChoice:
    """Read a file of `write_choice`; CheckpointError if it is not one."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            stated = json.loads(file.metadata()["groups"])
        groups = tuple(
            GroupChoice(
                previous=each["previous"],
                scaled=tuple(each["scaled"]),
                ratio=each["ratio"],
                scales=tensors[f"{number}.scales"],
                losses=tensors[f"{number}.losses"],
            )
            for number, each in enumerate(stated)
        )
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is not a block of a search: delete it to search the block again") from error
    limits = {name.removeprefix("limits."): each for name, each in tensors.items() if name.startswith("limits.")}
    return BlockChoice(groups, limits or None)


def _replace(path: Path, text: str) -> None:
    draft = path.with_suffix(".partial")
    draft.write_text(text + "\n", encoding="utf-8")
    draft.replace(path)
