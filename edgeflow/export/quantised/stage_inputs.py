"""Inputs of every stage over recorded frames, as a runtime gives them: what quantised graphs are calibrated on.

Of a flow policy all denoising steps are recorded (EdgeFM appendix B.4), of tokens all decode steps; or the first only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from edgeflow.engine.flow.policy import FlowFrame
from edgeflow.engine.policy import PreparedFrame
from edgeflow.errors import ConfigError
from edgeflow.export.quantised.flow_loop import FlowLoop, candidates_of
from edgeflow.export.quantised.stage_runs import Array, Arrays, StageKey, run_torch, stage_key
from edgeflow.export.quantised.token_loop import TokenLoop
from edgeflow.static_graphs.flow import FlowExport
from edgeflow.static_graphs.stages import ModelProgram, StageProgram
from edgeflow.static_graphs.tokens import TokenExport

Steps = Literal["all", "first"]
StageInputs = Mapping[StageKey, list[Arrays]]
Item = TypeVar("Item")


def record_flow_inputs(
    export: FlowExport, program: ModelProgram, frames: Sequence[FlowFrame], steps: Steps = "all"
) -> StageInputs:
    """The inputs of each stage. Every bucket sees all frames, their text cut to its length; all steps are those of the
    largest bucket. Inputs share keys and values between steps. ConfigError without frames, or for one that does not
    fit."""
    _check(frames)
    recorder, texts = _Recorder(program), sorted(export.text)
    for text in texts[:-1]:
        loop = FlowLoop(export, program, text, min(export.batches))
        for frame in frames:
            cut = replace(frame, prompt_ids=frame.prompt_ids[:text])
            loop.run([(cut, frame.noise[0])] * loop.step.batch, recorder.of(loop.towers, loop.prefill), 0)
    for batch in sorted(export.batches):
        loop, first = FlowLoop(export, program, texts[-1], batch), batch == min(export.batches)
        wanted = (loop.towers, loop.prefill, loop.step) if first else (loop.step,)
        for group in _groups(candidates_of(frames), batch):
            loop.run(group, recorder.of(*wanted), 1 if steps == "first" else None)
    return recorder.found


def record_token_inputs(
    export: TokenExport, program: ModelProgram, frames: Sequence[PreparedFrame], tokens: int, steps: Steps = "all"
) -> StageInputs:
    """The same of a model that decodes. tokens: K, of an answer, at least 2."""
    _check(frames)
    recorder, texts = _Recorder(program), sorted(export.text)
    count = 2 if steps == "first" else tokens
    for text in texts[:-1]:
        loop = TokenLoop(export, program, text, min(export.batches))
        for frame in frames:
            cut = replace(frame, prompt_ids=frame.prompt_ids[:text])
            loop.run([cut] * loop.step.batch, recorder.of(loop.towers, loop.prefill), 1)
    for batch in sorted(export.batches):
        loop, first = TokenLoop(export, program, texts[-1], batch), batch == min(export.batches)
        wanted = (loop.towers, loop.prefill, loop.step) if first else (loop.step,)
        for group in _groups(frames, batch):
            loop.run(group, recorder.of(*wanted), count)
    return recorder.found


class _Recorder:
    def __init__(self, program: ModelProgram) -> None:
        self.found: dict[StageKey, list[Arrays]] = {stage_key(stage): [] for stage in program.stages}

    def of(self, *stages: StageProgram) -> _Recording:
        """A run of stages by torch that keeps the inputs of some."""
        return _Recording(self.found, {stage_key(stage) for stage in stages})


class _Recording:
    """Prefixes that several candidates share are computed, and recorded, once per call of a loop."""

    def __init__(self, found: dict[StageKey, list[Arrays]], wanted: Collection[StageKey]) -> None:
        self._found = found
        self._wanted = wanted

    def __call__(self, stage: StageProgram, inputs: Arrays) -> list[Array]:
        key = stage_key(stage)
        if key in self._wanted:
            self._found[key].append(inputs)
        return run_torch(stage, inputs)


def _groups(items: Sequence[Item], size: int) -> Iterator[list[Item]]:
    """All items in groups of one size; the last is filled up with the first items."""
    for start in range(0, len(items), size):
        yield [items[index % len(items)] for index in range(start, start + size)]


def _check(frames: Sequence[object]) -> None:
    if not frames:
        raise ConfigError("calibration: has no frames; at least one is needed, better 32 or more")
