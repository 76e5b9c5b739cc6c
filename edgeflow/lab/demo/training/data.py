"""Rendered training data as memory-mapped .npy files, created once, in parallel; resumable."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeflow.lab.demo.training.states import State, label, sample_state
from edgeflow.lab.demo.world.layout import COLOURS, HANDLES
from edgeflow.lab.demo.world.robot import Arm
from edgeflow.lab.demo.world.scene import POLICY_CAMERA, POLICY_SIZE, Scene

CHUNK: Final = 250  # states a work item
ACTION_DIM: Final = 7
Columns = Mapping[str, tuple[tuple[int, ...], str]]  # shape of a row and type, by name
COLUMNS: Final[Columns] = {
    "images": ((POLICY_SIZE, POLICY_SIZE, 3), "uint8"),
    "actions": ((HANDLES, ACTION_DIM), "float32"),
    "pixels": ((HANDLES, 2), "float32"),
    "visible": ((HANDLES,), "bool"),
    "colours": ((HANDLES,), "int64"),
    "target": ((), "int64"),
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Dataset:
    """A data set of N states: images `[N, 96, 96, 3]`; per handle: actions `[N, 3, 7]`, pixels `[N, 3, 2]`, visible,
    colours (indices into COLOURS) `[N, 3]`; target `[N]`, the handle around which the state was drawn."""

    images: NDArray[np.uint8]
    actions: NDArray[np.float32]
    pixels: NDArray[np.float32]
    visible: NDArray[np.bool_]
    colours: NDArray[np.int64]
    target: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.target)


def open_dataset(folder: Path) -> Dataset:
    """Open the finished data of a folder; images stay on disk, read through the page cache."""
    return Dataset(**read_columns(folder, COLUMNS))


def read_columns(folder: Path, columns: Columns, mapped: Sequence[str] = ("images",)) -> dict[str, Any]:
    """Read the columns of a finished data set. mapped: those that stay on disk, as memory maps."""
    return {
        name: np.load(folder / f"{name}.npy", mmap_mode="r" if name in mapped else None, allow_pickle=False)
        for name in columns
    }


class Source(Protocol):
    """Draws the rows of a data set; one for each worker process."""

    def shoot(self, rng: np.random.Generator, /) -> dict[str, Any]:
        """Draw one row, by column."""

    def close(self) -> None:
        """Free what it holds."""


def make_dataset(
    folder: Path, count: int, seed: int, advance: Callable[[int], None], workers: int | None = None
) -> Dataset:
    """Render those of `count` states (rounded up to whole chunks) that are missing."""
    render(folder, count, seed, advance, columns=COLUMNS, source=Studio, workers=workers)
    return open_dataset(folder)


def render(
    folder: Path,
    count: int,
    seed: int,
    advance: Callable[[int], None],
    *,
    columns: Columns,
    source: Callable[[], Source],
    workers: int | None = None,
) -> None:
    """Create those of `count` rows (rounded up to whole chunks) that are missing, each chunk by a new source.

    The data depends on seed and count only, not on the number of workers. advance: called with the number of rows
    that are done.
    """
    chunks = -(-count // CHUNK)
    folder.mkdir(parents=True, exist_ok=True)
    done = _allocate(folder, chunks, columns)
    todo = [chunk for chunk in range(chunks) if not done[chunk]]
    advance((chunks - len(todo)) * CHUNK)
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        pending = [pool.submit(_render_chunk, str(folder), columns, source, [seed, chunk]) for chunk in todo]
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


def _render_chunk(folder: str, names: Columns, source: Callable[[], Source], place: Sequence[int]) -> int:
    """Render the chunk at `place`, which is a seed and the number of the chunk; return the number."""
    columns = {name: np.lib.format.open_memmap(Path(folder) / f"{name}.npy", mode="r+") for name in names}
    rng, chunk = np.random.default_rng(place), place[1]
    studio = source()
    for row in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        for name, value in studio.shoot(rng).items():
            columns[name][row] = value
    studio.close()
    return chunk


class Studio:
    """Draws states and renders them."""

    def __init__(self) -> None:
        self._scene = Scene()
        self._arm = Arm(self._scene)
        self._colours = list(COLOURS)

    def shoot(self, rng: np.random.Generator) -> dict[str, Any]:
        """Draw one row of the data set, by column."""
        state = self._pose(rng)
        labels = label(state)
        return {
            "images": self._picture(),
            "actions": labels.actions,
            "pixels": labels.pixels,
            "visible": labels.visible,
            "colours": self._colours_of(state),
            "target": state.target,
        }

    def _pose(self, rng: np.random.Generator) -> State:
        """Draw states until the arm can reach one, and put scene and arm there."""
        while True:
            state = sample_state(rng)
            self._scene.paint(state.handles)
            self._scene.place(state.handles, 0.0)
            if self._arm.teleport(state.tool) < 1e-3:
                return state

    def _picture(self) -> NDArray[np.uint8]:
        return self._scene.picture(self._scene.moment(), POLICY_CAMERA, POLICY_SIZE, POLICY_SIZE)

    def _colours_of(self, state: State) -> list[int]:
        """Indices into COLOURS, by handle."""
        return [self._colours.index(handle.colour) for handle in state.handles]

    def close(self) -> None:
        self._scene.close()
