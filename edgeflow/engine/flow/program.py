"""One pass of a flow policy: prefixes of frames that begin, and a step of each frame in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.engine.flow.guidance import gain
from edgeflow.engine.flow.stages import PlacedPass, PrefixInputs, StepInputs
from edgeflow.engine.flow.state import FlowState


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
