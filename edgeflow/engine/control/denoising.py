"""The engine of flow policies: the steps of several frames and robots share a pass with the newest prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.engine.control.engine import Chunked, EngineOptions, PassEngine
from edgeflow.engine.executor import Ticket
from edgeflow.engine.flow.frames import FlowFrame, FlowSizes, Previous, gain, guidance_of
from edgeflow.engine.flow.policy import FlowPolicy, PlacedPass, PrefixInputs, PrefixSegment, StepInputs, StepSegment
from edgeflow.engine.policy import Policy
from edgeflow.kernels.kv.layout import on_device, uploaded
from edgeflow.scheduler.plan import FrameRef, Move, Pass, Segment
from edgeflow_client.errors import InvalidArgument


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
        """Frames begin in their slots [B]. lines: as in `lines_of`, on the device."""
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
            times=_each(self._times_of(places.steps, clean), count),
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

    def _times_of(self, steps: Tensor, clean: Tensor | None) -> Tensor:
        """The index of each row's flow time [n, H]."""
        if clean is None:
            return steps[:, None].expand(-1, len(self._rows))
        return torch.where(clean, self._sizes.steps, steps[:, None])

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
    """x [n, M, H, A], whose clean rows [n, H] are those of the target [n, H, A]; numbers that are not finite stay
    so.
    """
    if target is None or clean is None:
        return x
    return torch.where(clean[:, None, :, None], target[:, None] + 0.0 * x, x)


SAME = 1e-6  # difference by which a normalised value counts as changed


class FlowEngine(PassEngine):
    """Runs the passes of a flow policy. They are not replayed.

    slots: whole rings of N + 1. capacity: positions that a frame may use of its slot, prefix and step. stages: run its
    networks. watch: called with the segments that take a step in a pass, and with their steps.
    """

    def __init__(self, policy: FlowPolicy, slots: int, capacity: int) -> None:
        sizes = policy.sizes
        self.policy: FlowPolicy = policy
        self.watch: Callable[[Sequence[Segment[FrameRef]], Steps], None] | None = None
        self.sessions = slots // sizes.program.passes
        self.capacity = capacity
        self.text_rows = capacity - policy.fixed_rows - sizes.step_rows
        self.stages = policy.stages(slots, capacity)
        self.launch_ahead = self.stages.launch_ahead
        self.kv_bytes = self.stages.kv_bytes
        self._device = self.stages.device
        self.state = FlowState(slots, sizes, self._device)
        self._program = FlowProgram(sizes, self.state)
        self._prefixes = [0] * slots  # rows of the prefix in each slot, and whether its frame continues a chunk
        self._guided = [False] * slots

    def rows(self, prompt: FlowFrame) -> int:
        return self.stages.rows(prompt)

    @torch.inference_mode()
    def launch(self, planned: Pass[FrameRef], prompts: Mapping[FrameRef, FlowFrame]) -> Ticket[FrameRef]:
        """Start a pass: place its rows, run it, fetch the chunks of the frames that it finishes."""
        begin, steps = planned.prefills, planned.decodes
        frames = [prompts[segment.sequence] for segment in begin]
        prefixes = [self._begin(segment, frame) for segment, frame in zip(begin, frames, strict=True)]
        stepping = [StepSegment(slot=each.slot, prefix=self._prefixes[each.slot], step=each.stage) for each in steps]
        # Guidance costs a few kernels, so passes without a continued chunk run without it.
        guided = any(self._guided[each.slot] for each in steps)
        places = self.stages.place(prefixes, stepping, [frame.prompt_ids for frame in frames])
        lines = uploaded(lines_of(frames, self.policy.sizes), self._device) if frames else None
        pixels = [
            uploaded(frame.pixel_values, self._device) if frame.pixel_values.is_cpu else frame.pixel_values
            for frame in frames
        ]
        started = self.stamp()
        done = self._program.run(places, lines, pixels, guided=guided)
        if self.watch is not None and done is not None:
            self.watch(steps, done)
        self._move(planned.moves)
        return Ticket(
            planned=planned,
            samples=(1,) * len(planned.segments),
            results=self._finished(steps, done),
            logits=None,
            started=started,
            done=self.stamp(),
        )

    def collect(self, ticket: Ticket[FrameRef]) -> Sequence[Chunked]:
        """Wait for a pass; returns the outcome of each segment.

        A latent that is not finite at some step is not at any later one, so the chunk shows it.
        """
        if ticket.done is not None:
            ticket.done.wait()
        chunks = iter(() if ticket.results is None else ticket.results.numpy())
        return [self._outcome(segment, chunks) for segment in ticket.planned.segments]

    def as_sent(self, values: NDArray[np.float64], actions: NDArray[np.float64]) -> NDArray[np.float64]:
        sent, sent_values = self.policy.normalised(actions), values.copy()
        rows, dims = sent.shape
        given = sent_values[:rows, :dims]
        changed = np.isfinite(sent) & ~np.isclose(sent, given, rtol=SAME, atol=SAME)
        given[changed] = sent[changed]
        return sent_values

    def continued(self, prompt: FlowFrame, previous: Previous) -> FlowFrame:
        settings = self.policy.rtc
        if settings is None:
            return prompt
        horizon = settings.execution_horizon
        if not settings.trained_max_delay and previous.delay > horizon:
            raise InvalidArgument(
                f"is {previous.delay} rows; only the first {horizon} of a chunk are drawn to the one in execution",
                field="previous.delay",
            )
        return replace(prompt, guidance=guidance_of(previous, settings, self.policy.sizes))

    def _begin(self, segment: Segment[FrameRef], frame: FlowFrame) -> PrefixSegment:
        """Note the frame of a slot. ValueError where its prefix has more rows than planned."""
        rows = self.rows(frame)
        if rows > segment.length:
            raise ValueError(f"{segment.sequence} has {rows} rows of a prefix; {segment.length} were planned")
        self._prefixes[segment.slot] = rows
        self._guided[segment.slot] = frame.guidance is not None
        return PrefixSegment(slot=segment.slot, rows=rows)

    def _move(self, moves: Sequence[Move]) -> None:
        if not moves:
            return
        for move in moves:
            self.stages.copy_prefix(move.source, move.target, min(move.length, self._prefixes[move.source]))
            self._prefixes[move.target] = self._prefixes[move.source]
            self._guided[move.target] = self._guided[move.source]
        source, target = on_device([[move.source, move.target] for move in moves], self._device).unbind(1)
        self.state.move(source, target)

    def _finished(self, steps: Sequence[Segment[FrameRef]], done: Steps | None) -> Tensor | None:
        """The chunks of the frames after their last step, being copied to the host [f, M, H, A] float64."""
        last = [index for index, each in enumerate(steps) if each.stage == self.policy.sizes.steps]
        if done is None or not last:
            return None
        chunks = done.after if len(last) == len(steps) else done.after[on_device(last, self._device)]
        return chunks.to("cpu", torch.float64, non_blocking=True, copy=True)

    def _outcome(self, segment: Segment[FrameRef], chunks: Iterator[NDArray[np.float64]]) -> Chunked:
        if segment.stage < self.policy.sizes.steps:
            return Chunked(segment.sequence, ())
        values = next(chunks)
        return Chunked(segment.sequence, (), bool(np.isfinite(values).all()), values=values)


def flow_engine(policy: Policy, options: EngineOptions) -> FlowEngine:
    """The engine of a flow policy, with a ring of N + 1 slots for each session."""
    served = cast("FlowPolicy", policy)
    sizes = served.sizes
    capacity = served.fixed_rows + options.text_rows + sizes.step_rows
    return FlowEngine(served, options.sessions * sizes.program.passes, capacity)
