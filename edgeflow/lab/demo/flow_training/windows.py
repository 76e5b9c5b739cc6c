"""Training batches of a policy that reads the last frames and knows when its chunk will be executed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.lab.demo.flow_training.batches import BatchNormaliser
from edgeflow.lab.demo.flow_training.chunks import displaced
from edgeflow.lab.demo.flow_training.pursuit import STEP_S, Tracks, pursue
from edgeflow.lab.demo.flow_training.quaternions import conjugate, multiply, rotate, rotvecs
from edgeflow.lab.demo.flow_training.sequences import FRAMES, SequenceData
from edgeflow.lab.demo.training.batches import Prompts, name_handles
from edgeflow.lab.demo.world.layout import CELL_X, TOOL_DOWN
from edgeflow_client.pose import Vector

HISTORY: Final = 3  # frames of a window
HISTORY_STEP_S: Final = 0.2
MOST_DELAY_S: Final = 1.2
MOST_KEPT: Final = 24  # rows
STATE_DIM: Final = 24  # newest state; for each older frame its state less the newest and its gap; delay
AHEAD_S: Final = (0.0, 0.3, 0.7)  # times after the delay at which auxiliary outputs place the handle
_ALONE_SHARE, _SHORT_SHARE = 0.12, 0.1  # of the windows: without an older frame, and with fewer than HISTORY
_NO_MOTION_S: Final = 0.08  # a longest gap below this tells nothing about velocity
_WAITING_SHARE: Final = 0.5  # share of the chunks that begin after a delay; the others continue a chunk
_PLAIN_SHARE: Final = 0.1  # share of those others that keep no rows
_METRES, _RADIANS = (0.001, 0.02), (0.01, 0.12)  # error of the plan whose rows are kept, log-uniform
_SPEED: Final = (0.002, 0.03)  # m/s, error of its velocity, log-uniform
_BLIND_SHARE: Final = 0.25  # share of these plans that know of no velocity
_LATE_WEIGHT: Final = 0.1  # of rows after the gripper has closed
_CLOSING_ROWS: Final = 4


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MotionBatch:
    """B windows with N instructions each, and R chunks for each of these."""

    rows: Tensor
    """`[B, 1]`, the sequence of each window."""
    frames: Tensor
    """`[B, 3]`, its frames, the oldest first."""
    ids: Tensor
    """`[B, N, T]`."""
    named: int
    """The column of the name in ids."""
    pixels: Tensor
    """`[B, N, 3, 2]`, where the named plate appears in each frame, the newest first, as `visible` `[B, N, 3]`."""
    visible: Tensor
    states: Tensor
    """`[B, N, R, S]`, normalised and padded."""
    chunks: Tensor
    """`[B, N, R, C, A]`, normalised and padded."""
    kept: Tensor
    """`[B, N, R]`, first rows that come from an earlier chunk."""
    weights: Tensor
    """`[B, N, R, C]`, of rows in the loss."""
    places: Tensor
    """`[B, N, 3, 3]`, the grasp position in each frame's tool frame, metres, the newest first."""
    velocity: Tensor
    """`[B, N, 3]`, of the handle in the newest tool frame, m/s."""
    on_map: Tensor
    """`[B, N, 4]`, the grasp position along x and y in the base frame, from the middle of the cells, and velocity."""
    ahead: Tensor
    """`[B, N, R, 3, 3]`, its grasp position in the newest tool frame AHEAD_S after the delay."""

    def to(self, device: torch.device) -> MotionBatch:
        """Move the batch's tensors to a device."""
        names = (field.name for field in fields(self) if field.name != "named")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def choose_windows(
    data: SequenceData, rows: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.int64], Vector]:
    """Frames `[B, 3]` of the windows of sequences `[B]`, the newest first, and the older ones' gaps `[B, 2]`, seconds.

    As a service chooses them: those nearest to HISTORY_STEP_S and twice that before the newest; the oldest is repeated
    where there are too few.
    """
    size, kind = len(rows), rng.uniform(size=len(rows))
    newest = rng.integers(FRAMES - HISTORY, FRAMES, size=size)
    begin = np.where(kind < _ALONE_SHARE, newest, 0)
    short = (kind >= _ALONE_SHARE) & (kind < _ALONE_SHARE + _SHORT_SHARE)
    begin = np.where(short, newest - rng.integers(1, FRAMES - HISTORY, size=size), begin)
    ages = data.times[rows, newest][:, None] - data.times[rows]
    places, frames = np.arange(FRAMES)[None], [newest]
    for back in range(1, HISTORY):
        off = np.abs(ages - back * HISTORY_STEP_S)
        off = np.where((places >= begin[:, None]) & (places < frames[-1][:, None]), off, np.inf)
        frames.append(np.where(np.isinf(off).all(axis=1), frames[-1], off.argmin(axis=1)))
    chosen = np.stack(frames, axis=1)
    gaps = np.take_along_axis(ages, chosen[:, 1:], axis=1)
    # a repeated frame may be told with its gap or with none
    untold = (chosen[:, 1:] == chosen[:, :-1]) & (rng.uniform(size=(size, 1)) < 0.5)
    return chosen, np.where(untold, 0.0, gaps)


def window_states(data: SequenceData, rows: NDArray[np.int64], frames: NDArray[np.int64], gaps: Vector) -> Vector:
    """The network's state vectors `[B, STATE_DIM]` of windows, with a delay of 0."""
    tools, apertures = data.tool[rows[:, None], frames], data.aperture[rows[:, None], frames]
    tilt = rotvecs(multiply(conjugate(TOOL_DOWN), tools[..., 3:]))
    states = np.concatenate([tools[..., :3], tilt, apertures[..., None]], axis=-1)
    older = np.concatenate([states[:, 1:] - states[:, :1], gaps[..., None]], axis=-1)
    return np.concatenate([states[:, 0], older.reshape(len(rows), -1), np.zeros((len(rows), 1))], axis=1)


def draw_windows(
    data: SequenceData,
    *,
    normaliser: BatchNormaliser,
    prompts: Prompts,
    shape: tuple[int, int, int],
    rng: np.random.Generator,
) -> MotionBatch:
    """A random batch of shape (windows, instructions per window, chunks per instruction)."""
    size, branches, count = shape
    rows = np.sort(rng.integers(len(data), size=size))
    frames, gaps = choose_windows(data, rows, rng)
    handles, names = name_handles(
        data.colours[rows], data.visible[rows, frames[:, 0]], data.target[rows], rng, branches
    )
    states = window_states(data, rows, frames, gaps)
    delays, kept = _draw_timing((size, branches, count), rng)
    row, handle = np.repeat(rows, branches), handles.reshape(-1)
    tracks = Tracks.of(data.grasps[row, handle], data.origin[row, handle], data.velocity[row, handle], handle)
    times = np.repeat(data.times[rows[:, None], frames], branches, axis=0)
    tools = np.repeat(data.tool[rows[:, None], frames], branches, axis=0)
    places = _in_frame(tools, tracks.grasps(times))
    tracks = tracks.from_time(times[:, 0])
    unmoved = np.repeat(gaps.max(axis=1) < _NO_MOTION_S, branches)
    tracks.velocity[unmoved] = 0.0  # a velocity that nothing shows must not become a random one
    aperture = np.repeat(data.aperture[rows, frames[:, 0]], branches)
    chunks, weights = _labels(
        tracks,
        tools[:, 0],
        aperture,
        delays=delays.reshape(-1, count),
        kept=kept.reshape(-1, count),
        rows=normaliser.size.chunk,
        rng=rng,
    )
    after = delays.reshape(-1, count)[..., None] + np.array(AHEAD_S)
    ahead = _in_frame(tools[:, :1], tracks.grasps(after.reshape(len(after), -1)))
    on_map = np.concatenate([tracks.grasp[:, :2] - (CELL_X, 0.0), tracks.velocity], axis=1)
    velocity = rotate(conjugate(tools[:, 0, 3:]), np.concatenate([tracks.velocity, np.zeros((len(row), 1))], axis=1))
    every = np.repeat(states[:, None, None], branches, axis=1).repeat(count, axis=2)
    every[..., -1] = delays
    phrase = int(rng.integers(len(prompts.tails)))
    branch = (size, branches)
    return MotionBatch(
        rows=torch.from_numpy(rows)[:, None],
        frames=torch.from_numpy(frames[:, ::-1].copy()),
        ids=prompts.tails[phrase][torch.from_numpy(names)],
        named=prompts.named[phrase],
        pixels=torch.from_numpy(data.pixels[rows[:, None, None], frames[:, None], handles[..., None]]),
        visible=torch.from_numpy(data.visible[rows[:, None, None], frames[:, None], handles[..., None]]),
        states=normaliser.states(torch.from_numpy(every).float()),
        chunks=normaliser.chunks(torch.from_numpy(chunks.reshape(*branch, *chunks.shape[1:])).float()),
        kept=torch.from_numpy(kept),
        weights=torch.from_numpy(weights.reshape(*branch, *weights.shape[1:])).float(),
        places=torch.from_numpy(places.reshape(*branch, HISTORY, 3)).float(),
        velocity=torch.from_numpy(velocity.reshape(*branch, 3)).float(),
        on_map=torch.from_numpy(on_map.reshape(*branch, 4)).float(),
        ahead=torch.from_numpy(ahead.reshape(*branch, count, len(AHEAD_S), 3)).float(),
    )


def _draw_timing(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Vector, NDArray[np.int64]]:
    """Delays in seconds and numbers of kept rows: one of the two is 0."""
    waiting = rng.uniform(size=shape) < _WAITING_SHARE
    usual = np.minimum(rng.exponential(0.45, shape), MOST_DELAY_S)
    delays = np.where(rng.uniform(size=shape) < 0.5, usual, rng.uniform(0.0, MOST_DELAY_S, shape))
    share = rng.uniform(size=shape)
    kept = np.where(share < 0.45, rng.integers(1, 6, size=shape), rng.integers(6, 17, size=shape))
    kept = np.where(share > 0.9, rng.integers(17, MOST_KEPT + 1, size=shape), kept)
    kept = np.where(rng.uniform(size=shape) < _PLAIN_SHARE, 0, kept)
    return np.where(waiting, delays, 0.0), np.where(waiting, 0, kept)


def _labels(
    tracks: Tracks,
    tool: Vector,
    aperture: NDArray[np.floating],
    *,
    delays: Vector,
    kept: NDArray[np.int64],
    rows: int,
    rng: np.random.Generator,
) -> tuple[Vector, Vector]:
    """Chunks `[N, R, rows, 7]` and their rows' weights, of motions from tool poses `[N, 7]` and apertures `[N]`."""
    count = delays.shape[1]
    tracks = Tracks(
        *(
            np.repeat(each, count, axis=0)
            for each in (tracks.grasp, tracks.origin, tracks.velocity, tracks.low, tracks.high)
        )
    )
    tool, aperture = np.repeat(tool, count, axis=0), np.repeat(aperture, count)
    times = delays.reshape(-1, 1) + STEP_S * np.arange(rows + 1)
    count_kept = kept.reshape(-1)
    goals = tracks.grasps(times)
    before = _earlier(tracks, rng)
    plan = pursue(tool, aperture, before.grasps(times), before.grasp[:, 3:], np.zeros(len(tool), np.int64))
    at = np.arange(len(tool)), count_kept
    there = np.concatenate([plan.positions[at], plan.turns[at]], axis=1)
    later = pursue(there, plan.apertures[at], goals, tracks.grasp[:, 3:], count_kept)
    joined = plan.then(later, count_kept)
    closed = ((later.gripper == 0.0) & (np.arange(rows) >= count_kept[:, None])).cumsum(axis=1)
    weights = np.where(closed > _CLOSING_ROWS, _LATE_WEIGHT, 1.0)
    return joined.chunks().reshape(*delays.shape, rows, 7), weights.reshape(*delays.shape, rows)


def _earlier(tracks: Tracks, rng: np.random.Generator) -> Tracks:
    """The motions as an earlier answer knew them: with errors of pose and velocity."""
    size = len(tracks.grasp)
    scale = rng.uniform(size=(size, 1))
    metres, radians, speed = (
        low * (high / low) ** scale * rng.standard_normal((size, width))
        for (low, high), width in ((_METRES, 3), (_RADIANS, 3), (_SPEED, 2))
    )
    grasp = displaced(tracks.grasp, metres, radians)
    blind = rng.uniform(size=(size, 1)) < _BLIND_SHARE
    velocity = np.where(blind, 0.0, tracks.velocity + speed)
    ago = np.where(blind, rng.uniform(0.0, 1.0, (size, 1)), 0.0)  # it heads for where the handle was
    grasp[:, :2] -= ago * tracks.velocity
    return Tracks(grasp, tracks.origin, velocity, tracks.low, tracks.high)


def _in_frame(tools: Vector, positions: Vector) -> Vector:
    """Positions `[N, T, 3]` in the frames of tools `[N, T or 1, 7]`."""
    return rotate(conjugate(tools[..., 3:]), positions - tools[..., :3])


def state_rows(data: SequenceData, rng: np.random.Generator, size: int = 20_000) -> NDArray[np.float32]:
    """State vectors of random windows `[size, STATE_DIM]`, for their statistics."""
    rows = rng.integers(len(data), size=size)
    states = window_states(data, rows, *choose_windows(data, rows, rng))
    states[:, -1] = _draw_timing((size,), rng)[0]
    return states.astype(np.float32)
