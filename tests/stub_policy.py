"""Checkpoints of the stub policy (tests/plugins), which is served as an installed plug-in is.

Use the fixture `stub_plugin` in a test, whose process and children then find the plug-in; other processes find it with
`environment()`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from edgeflow.policies import registry

FOLDER = Path(__file__).parent / "plugins"


def environment() -> dict[str, str]:
    """The environment of a process that finds the plug-in."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])}


@pytest.fixture
def stub_plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process finds the plug-in, as do the processes that it starts."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(FOLDER)])
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    registry.plugins.cache_clear()
    yield
    registry.plugins.cache_clear()


def table_key(image: np.ndarray) -> str:
    """The entry of an image [height, width, 3] of bytes in a table."""
    return hashlib.sha256(image.tobytes()).hexdigest()


def stub_checkpoint(
    folder: Path,
    *,
    cameras: Mapping[str, tuple[int, int] | None] | None = None,
    state: Mapping[str, int | Sequence[str]] | None = None,
    actions: int | Sequence[str] = 7,
    horizon: int = 8,
    control_rate_hz: float = 20.0,
    pass_s: float = 0.0,
    looks: bool = True,
    load_s: float = 0.0,
    late_every: int = 0,
    late_s: Sequence[float] = (),
    low: float | None = None,
    high: float | None = None,
    relative: bool = False,
    unnorm_keys: Sequence[str] = ("action",),
    history: int = 1,
    most_sessions: int | None = None,
    table: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write a checkpoint into a folder, which is made; its path.

    cameras: width and height by name; None = any size; by default the robot's first camera, whatever it is. state: by
    name, the size of a vector, or the names of its numbers. actions: the numbers of one, or their names. pass_s,
    load_s: the time of a pass, and of loading. late_every, late_s: every so many passes, one takes the next of these
    times. history: observations whose answers are added up. looks: False = row i of each answer is i, and no time
    goes into pixels. low, high: of every number of an action. table: answers [horizon, dims] by `table_key`; without
    it, and for other images, an answer is
    `tests.plugins.edgeflow_stub.answer`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"a{index}" for index in range(actions)] if isinstance(actions, int) else list(actions)
    sizes = {"camera": None} if cameras is None else cameras
    config: dict[str, Any] = {
        "type": "stub",
        "cameras": [
            {"name": name, "named": cameras is not None, **({"width": size[0], "height": size[1]} if size else {})}
            for name, size in sizes.items()
        ],
        "state": [
            {"name": name, "size": each}
            if isinstance(each, int)
            else {"name": name, "size": len(each), "elements": list(each)}
            for name, each in (state or {}).items()
        ],
        "actions": names,
        "horizon": horizon,
        "control_rate_hz": control_rate_hz,
        "step_ms": 1000.0 / control_rate_hz if horizon > 1 else 0.0,
        "pass_s": pass_s,
        "looks": looks,
        "load_s": load_s,
        "late_every": late_every,
        "late_s": list(late_s),
        "low": low,
        "high": high,
        "relative": relative,
        "unnorm_keys": list(unnorm_keys),
        "history": history,
        "most_sessions": most_sessions,
    }
    (folder / "config.json").write_text(json.dumps(config))
    answers = {key: np.asarray(rows, np.float64).reshape(horizon, len(names)) for key, rows in (table or {}).items()}
    save_file(answers, folder / "model.safetensors")
    return folder
