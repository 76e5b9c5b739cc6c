"""One pass of a flow policy: prefixes of frames that begin, steps of those in flight, and the state of slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.engine.flow.frames import FlowFrame, FlowSizes, gain
from edgeflow.engine.flow.policy import PlacedPass, PrefixInputs, StepInputs


class FlowState:
    """Numbers of S slots, one line of float32 each, which passes read and write by slot.

    x [S, M, H, A]: the latents. target [S, H, A], weights [S, H], most [S], clean [S]: as of Guidance, zeros without
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
        """Frames begin in their slots [B]. lines: as of `lines_of`, on the device."""
        self._lines[slots] = lines[:, : self._lines.shape[1]]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Slots `source` enter slots `target` [n], all at once."""
        self._lines[target] = self._lines[source]


def lines_of(frames: Sequence[FlowFrame], sizes: FlowSizes) -> Tensor:
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
    """The steps of a pass, of n frames [n, M, H, A]. x: before the step; velocity: of the network; used: as guided;
    after: x behind the step.
    """

    x: Tensor
    velocity: Tensor
    used: Tensor
    after: Tensor


class FlowProgram:
    """The arithmetic of latents around the networks. What it does follows from the shape of a pass; it waits for
    nothing."""

    def __init__(self, sizes: FlowSizes, state: FlowState) -> None:
        device = state.x.device
        self._sizes = sizes
        self._state = state
        times = [sizes.time(step) for step in range(1, sizes.steps + 1)]
        self._times = torch.tensor(times, device=device)
        self._gains = torch.tensor([gain(time) for time in times], device=device)
        self._rows = torch.arange(sizes.horizon, device=device)

    def run(self, places: PlacedPass, lines: Tensor | None, pixels: Sequence[Tensor], *, guided: bool) -> Steps | None:
        """Run a pass; None where no frame steps.

        lines: of the frames that begin, on the device; pixels [C, 3, h, w] of each. guided: some frame that steps
        continues another chunk.
        """
        prefixes = None
        if lines is not None:
            self._state.enter(places.begin, lines)
            prefixes = PrefixInputs(pixels=pixels, state=lines[:, self._state.before_state :])
        if not len(places.slots):
            places.run(prefixes, None)
            return None
        return self._step(prefixes, places, guided)

    def _step(self, prefixes: PrefixInputs | None, places: PlacedPass, guided: bool) -> Steps:
        slots, state, count = places.slots, self._state, self._sizes.candidates
        clean = self._rows < state.clean[slots, None] if guided else None  # [n, H]
        x = _kept(state.x[slots], state.target[slots] if guided else None, clean)
        time = self._times[places.steps]
        inputs = StepInputs(
            x=x.flatten(0, 1),
            time=_each(time, count),
            clean=self._clean(clean, len(x)),
            state=_each(state.state[slots], count),
        )
        velocity = self._velocity(places, prefixes, inputs).view(x.shape)
        used = self._guided(x, velocity, time, places) if guided else velocity
        after = torch.add(x, used, alpha=-1.0 / self._sizes.steps)
        after = _kept(after, state.target[slots] if guided else None, clean)
        state.x[slots] = after
        return Steps(x=x, velocity=velocity, used=used, after=after)

    def _velocity(self, places: PlacedPass, prefixes: PrefixInputs | None, steps: StepInputs) -> Tensor:
        velocity = places.run(prefixes, steps)
        if velocity is None:
            raise RuntimeError("a pass with steps gave no velocities")
        return velocity

    def _clean(self, clean: Tensor | None, frames: int) -> Tensor:
        """[n M, H]"""
        if clean is None:
            return torch.zeros(
                frames * self._sizes.candidates, len(self._rows), dtype=torch.bool, device=self._rows.device
            )
        return _each(clean, self._sizes.candidates)

    def _guided(self, x: Tensor, velocity: Tensor, time: Tensor, places: PlacedPass) -> Tensor:
        """The velocity [n, M, H, A], drawn to the target of each frame."""
        state, slots = self._state, places.slots
        reached = x - time[:, None, None, None] * velocity
        bounded = torch.minimum(self._gains[places.steps], state.most[slots])
        pull = (bounded[:, None] * state.weights[slots])[:, None, :, None]
        return torch.addcmul(velocity, pull, state.target[slots][:, None] - reached, value=-1.0)


def _each(values: Tensor, count: int) -> Tensor:
    """[n, ...] → [n count, ...], every value `count` times"""
    return values if count == 1 else values.repeat_interleave(count, dim=0)


def _kept(x: Tensor, target: Tensor | None, clean: Tensor | None) -> Tensor:
    """x [n, M, H, A], whose clean rows [n, H] are those of the target [n, H, A]; what is not finite remains so."""
    if target is None or clean is None:
        return x
    return torch.where(clean[:, None, :, None], target[:, None] + 0.0 * x, x)
