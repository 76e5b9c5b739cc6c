"""Rendered training data as memory-mapped .npy files, created once, in parallel; resumable."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.training.states import StateLabels, TrainingState, label, sample_state
from edgeflow.lab.demo.world.layout import COLOURS, HANDLES
from edgeflow.lab.demo.world.robot import ToolMotion
from edgeflow.lab.demo.world.scene import POLICY_SIZE, Scene

CHUNK: Final = 250  # states per work item
ACTION_DIM: Final = 7
Columns = Mapping[str, tuple[tuple[int, ...], str]]  # shape of a row and type, by name
SCENE_COLUMNS: Final[Columns] = {
    "images": ((POLICY_SIZE, POLICY_SIZE, 3), "uint8"),
    "pixels": ((HANDLES, 2), "float32"),
    "visible": ((HANDLES,), "bool"),
    "colours": ((HANDLES,), "int64"),
    "target": ((), "int64"),
}
COLUMNS: Final[Columns] = {**SCENE_COLUMNS, "actions": ((HANDLES, ACTION_DIM), "float32")}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SceneData:
    """N rendered states: images `[N, 96, 96, 3]`; per handle, pixels `[N, 3, 2]`, visible and colours (indices into
    COLOURS) `[N, 3]`; target `[N]`, the handle around which the state was sampled.
    """

    images: NDArray[np.uint8]
    pixels: NDArray[np.float32]
    visible: NDArray[np.bool_]
    colours: NDArray[np.int64]
    target: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Dataset(SceneData):
    """Rendered states with an action for each handle, `[N, 3, 7]`."""

    actions: NDArray[np.float32]


def make_dataset(
    folder: Path, count: int, seed: int, advance: Callable[[int], None], workers: int | None = None
) -> Dataset:
    """Render the missing ones of `count` states (rounded up to whole chunks); images stay on disk and are read through
    the page cache.
    """
    render(folder, count, seed, advance, columns=COLUMNS, studio=Studio, workers=workers)
    return Dataset(**read_columns(folder, COLUMNS, mapped="images"))


def read_columns(folder: Path, columns: Columns, mapped: str | None = None) -> dict[str, Any]:
    """Read the columns of a finished data set.

    mapped: the column that stays on disk, as a memory map.
    """
    return {
        name: np.load(folder / f"{name}.npy", mmap_mode="r" if name == mapped else None, allow_pickle=False)
        for name in columns
    }


def render(
    folder: Path,
    count: int,
    seed: int,
    advance: Callable[[int], None],
    *,
    columns: Columns,
    studio: type[Studio],
    workers: int | None = None,
) -> None:
    """Create the missing ones of `count` rows (rounded up to whole chunks), each chunk in a new studio.

    The data depends only on seed and count, not on the number of workers.

    advance: called with the number of rows that are done.
    """
    chunks = -(-count // CHUNK)
    folder.mkdir(parents=True, exist_ok=True)
    done = _allocate(folder, chunks, columns)
    todo = [chunk for chunk in range(chunks) if not done[chunk]]
    advance((chunks - len(todo)) * CHUNK)
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        pending = [pool.submit(_render_chunk, str(folder), columns, studio, [seed, chunk]) for chunk in todo]
        for future in as_completed(pending):
            done[future.result()] = True
            advance(CHUNK)


def _allocate(folder: Path, chunks: int, columns: Columns) -> NDArray[np.bool_]:
    """Create the files that are missing or have another size; return which chunks are done."""
    marks = folder / "done.npy"
    if not marks.exists() or len(np.load(marks, allow_pickle=False)) != chunks:
        for name, (shape, dtype) in columns.items():
            _create(folder / f"{name}.npy", (chunks * CHUNK, *shape), dtype)
        _create(marks, (chunks,), "bool")
    return np.lib.format.open_memmap(marks, mode="r+")


def _create(path: Path, shape: tuple[int, ...], dtype: str) -> None:
    np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape).flush()


def _render_chunk(folder: str, names: Columns, studio_class: type[Studio], place: Sequence[int]) -> int:
    """Render the chunk at `place`, a seed and the number of the chunk; return the number."""
    columns = {name: np.lib.format.open_memmap(Path(folder) / f"{name}.npy", mode="r+") for name in names}
    rng, chunk = np.random.default_rng(place), place[1]
    studio = studio_class()
    for row in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        for name, value in studio.shoot(rng).items():
            columns[name][row] = value
    studio.close()
    return chunk


class Studio:
    """Samples states and renders them."""

    def __init__(self) -> None:
        self._scene = Scene()
        self._arm = ToolMotion(self._scene)
        self._colours = list(COLOURS)

    def shoot(self, rng: np.random.Generator) -> dict[str, Any]:
        """Sample and render one row of the data set, by column."""
        state = self._pose(rng)
        labels = label(state)
        return {**self._scene_row(state, labels), "actions": labels.actions}

    def _pose(self, rng: np.random.Generator) -> TrainingState:
        """Sample states until the arm can reach one, and put the scene and the arm there."""
        while True:
            state = sample_state(rng)
            self._scene.paint(state.handles)
            self._scene.place(state.handles, 0.0)
            if self._arm.teleport(state.tool) < 1e-3:
                return state

    def _scene_row(self, state: TrainingState, labels: StateLabels) -> dict[str, Any]:
        """The row's SCENE_COLUMNS for the current scene and arm."""
        return {
            "images": self._scene.picture(self._scene.moment()),
            "pixels": labels.pixels,
            "visible": labels.visible,
            "colours": [self._colours.index(handle.colour) for handle in state.handles],
            "target": state.target,
        }

    def close(self) -> None:
        self._scene.close()
