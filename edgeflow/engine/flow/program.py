"""The arithmetic of latents around the networks of a flow policy: their state by slot, Euler steps, guidance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edgeflow.engine.flow.frames import FlowFrame, FlowSizes, gain
from edgeflow.engine.flow.policy import FlowStages, PrefixInputs, StepInputs
from edgeflow.engine.flow.rows import FlowRows


class FlowState:
    """Numbers of S slots, one line of float32 each, which passes read and write by slot.

    x [S, M, H, A]: the latents. target [S, H, A], weights [S, H], most [S], clean [S]: as in Guidance, zeros without
    one. state [S, n]: what every step reads of the robot's state.
    """

    def __init__(self, slots: int, sizes: FlowSizes, device: torch.device) -> None:
        self._lines = torch.zeros(slots, sizes.state_numbers, device=device)
        x, target, self.weights, most, clean, self.state = torch.split(self._lines, list(sizes.state_widths), dim=1)
        self.x = x.view(slots, sizes.candidates, sizes.horizon, sizes.dims)
        self.target = target.view(slots, sizes.horizon, sizes.dims)
        self.most, self.clean = most[:, 0], clean[:, 0]
        self.before_state = sizes.state_numbers - sizes.state

    def enter(self, slots: Tensor, lines: Tensor) -> None:
        """Frames begin in their slots [B]. lines: as in `state_rows_of`, on the device."""
        self._lines[slots] = lines[:, : self._lines.shape[1]]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Slots `source` enter slots `target` [n], all at once."""
        self._lines[target] = self._lines[source]


def state_rows_of(frames: Sequence[FlowFrame], sizes: FlowSizes) -> Tensor:
    """The lines of frames that begin [B, ...], on the host; the robot's state last, whether steps read it or not.

    ValueError for noise or a target of another shape.
    """
    return torch.stack([torch.cat(_parts(frame, sizes)) for frame in frames])


def _parts(frame: FlowFrame, sizes: FlowSizes) -> list[Tensor]:
    horizon, dims = sizes.horizon, sizes.dims
    if frame.noise.shape != (sizes.candidates, horizon, dims):
        raise ValueError(f"noise is of shape {list(frame.noise.shape)}, not {[sizes.candidates, horizon, dims]}")
    guidance, noise = frame.guidance, frame.noise.flatten()
    if guidance is None:
        return [noise, noise.new_zeros(horizon * (dims + 1) + 2), frame.state]
    if guidance.target.shape != (horizon, dims) or guidance.weights.shape != (horizon,):
        raise ValueError(f"a target is of shape {list(guidance.target.shape)}, not {[horizon, dims]}")
    bounds = torch.tensor([guidance.most, float(guidance.clean)])
    return [noise, guidance.target.flatten(), guidance.weights, bounds, frame.state]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a pass, of n frames [n, M, H, A]."""

    x: Tensor
    """x before the step."""
    velocity: Tensor
    """The velocity that the network gave."""
    used: Tensor
    """The velocity after guidance."""
    after: Tensor
    """x after the step."""


class FlowProgram:
    """The arithmetic of latents around the networks. Its work follows from the shape of a pass; it waits for
    nothing."""

    def __init__(self, sizes: FlowSizes, state: FlowState, stages: FlowStages) -> None:
        self._sizes = sizes
        self._state = state
        self._stages = stages
        times = sizes.times[:-1]
        self._times = times.to(state.x.device)
        self._gains = torch.tensor([gain(time) for time in times.tolist()], device=state.x.device)
        self._rows = torch.arange(sizes.horizon, device=state.x.device)
        self._each_step = torch.split(torch.arange(sizes.steps, device=state.x.device), 1)

    def run(self, rows: FlowRows, prefixes: PrefixInputs | None, *, guided: bool) -> Steps | None:
        """Run a pass; None where no frame steps. guided: some frame that steps continues another chunk."""
        if len(rows.slots):
            return self._step(rows, prefixes, guided)
        self._stages.velocity(rows, prefixes, None)
        return None

    def chunks(self, prefix: FlowRows, step: FlowRows, inputs: PrefixInputs, *, guided: bool) -> Steps:
        """Run frames from their prefix to their last step; returns that step.

        step: rows of one step per frame; all steps use the same rows.
        """
        self._stages.velocity(prefix, inputs, None)
        for each in self._each_step:
            done = self._step(replace(step, steps=each.expand(len(step.slots))), None, guided)
        return done

    def _step(self, rows: FlowRows, prefixes: PrefixInputs | None, guided: bool) -> Steps:
        slots, state, count = rows.slots, self._state, self._sizes.candidates
        clean = self._rows < state.clean[slots, None] if guided else None  # [n, H]
        x = _kept(state.x[slots], state.target[slots] if guided else None, clean)
        inputs = StepInputs(
            x=x.flatten(0, 1),
            times=_each(self._times_of(rows.steps, clean), count),
            state=_each(state.state[slots], count),
        )
        velocity = self._stages.velocity(rows, prefixes, inputs)
        if velocity is None:
            raise RuntimeError("a pass with steps gave no velocities")
        velocity = velocity.view(x.shape)
        used = self._guided(x, velocity, rows) if guided else velocity
        after = torch.add(x, used, alpha=-1.0 / self._sizes.steps)
        after = _kept(after, state.target[slots] if guided else None, clean)
        state.x[slots] = after
        return Steps(x=x, velocity=velocity, used=used, after=after)

    def _times_of(self, steps: Tensor, clean: Tensor | None) -> Tensor:
        """The index of each row's flow time [n, H], contiguous as kernels read it."""
        if clean is None:
            return steps[:, None].repeat(1, len(self._rows))
        return torch.where(clean, self._sizes.steps, steps[:, None])

    def _guided(self, x: Tensor, velocity: Tensor, rows: FlowRows) -> Tensor:
        """The velocity [n, M, H, A], drawn to the target of each frame."""
        state, slots = self._state, rows.slots
        reached = x - self._times[rows.steps][:, None, None, None] * velocity
        bounded = torch.minimum(self._gains[rows.steps], state.most[slots])
        pull = (bounded[:, None] * state.weights[slots])[:, None, :, None]
        return torch.addcmul(velocity, pull, state.target[slots][:, None] - reached, value=-1.0)


def _each(values: Tensor, count: int) -> Tensor:
    """[n, ...] → [n count, ...], every value `count` times"""
    return values if count == 1 else values.repeat_interleave(count, dim=0)


def _kept(x: Tensor, target: Tensor | None, clean: Tensor | None) -> Tensor:
    """x [n, M, H, A], whose clean rows [n, H] are those of the target [n, H, A]; numbers that are not finite stay
    so.
    """
    if target is None or clean is None:
        return x
    return torch.where(clean[:, None, :, None], target[:, None] + 0.0 * x, x)
