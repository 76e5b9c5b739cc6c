"""Inputs of every stage over recorded frames, as a runtime provides them: quantised graphs are calibrated on these.

For a flow policy all denoising steps are recorded (EdgeFM appendix B.4), for tokens all decode steps; or only the
first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar

from edgeflow.lab.export.graphs.flow import FlowExport
from edgeflow.lab.export.graphs.stages import ModelProgram, StageGraph
from edgeflow.lab.export.graphs.tokens import TokenExport
from edgeflow.lab.export.quantised.flow_loop import FlowLoop, candidates_of
from edgeflow.lab.export.quantised.stage_runs import Array, Arrays, Run, StageKey, run_torch, stage_key
from edgeflow.lab.export.quantised.token_loop import TokenLoop
from edgeflow_client.errors import ConfigError

Steps = Literal["all", "first"]
StageInputs = Mapping[StageKey, list[Arrays]]
MOST_TOKENS = 32
"""Longest recorded answer of a model whose answers have no fixed length."""
Item = TypeVar("Item")


def record_stage_inputs(program: ModelProgram, frames: Sequence[Any], steps: Steps = "all") -> StageInputs:
    """The inputs of each stage, by its key.

    frames: FlowFrames of a flow policy, PreparedFrames of a model that decodes. Every bucket sees all frames, with
    their text cut to its length; all steps are those of the largest bucket. The inputs of an answer's steps share the
    keys and values of its prompt. ConfigError without frames, or for a frame that does not fit.
    """
    if not frames:
        raise ConfigError("calibration: has no frames; at least one is needed, better 32 or more")
    loops = _loops(program, steps)
    found: dict[StageKey, list[Arrays]] = {stage_key(stage): [] for stage in program.stages}
    texts, batches = loops.texts, loops.batches
    for text in texts[:-1]:
        loop = loops.of(text, batches[0])
        run = _Recording(found, (loop.towers, loop.prefill))
        for frame in frames:
            loops.prefix(loop, loops.cut(frame, text), run)
    for batch in batches:
        loop = loops.of(texts[-1], batch)
        run = _Recording(found, (loop.towers, loop.prefill, loop.step) if batch == batches[0] else (loop.step,))
        loops.answers(loop, frames, run)
    return found


class _LoopStages(Protocol):
    """The stages of a loop."""

    towers: StageGraph
    prefill: StageGraph
    step: StageGraph


class _Loops(Protocol):
    """The loops of a model, one per bucket and batch size."""

    texts: tuple[int, ...]
    """Text lengths of its buckets, ascending."""
    batches: tuple[int, ...]
    """Batch sizes of its steps, ascending."""

    def of(self, text: int, batch: int) -> _LoopStages: ...

    def cut(self, frame: Any, text: int) -> Any:
        """Cut a frame's text to the length of a bucket."""
        ...

    def prefix(self, loop: Any, frame: Any, run: Run) -> None:
        """Run towers and prefill of a frame."""
        ...

    def answers(self, loop: Any, frames: Sequence[Any], run: Run) -> None:
        """Run all stages over frames."""
        ...


def _loops(program: ModelProgram, steps: Steps) -> _Loops:
    if isinstance(program.source, FlowExport):
        return _FlowLoops(program, program.source, steps)
    if isinstance(program.source, TokenExport):
        return _TokenLoops(program, program.source, steps)
    raise ValueError("a program without its source")


class _FlowLoops:
    def __init__(self, program: ModelProgram, export: FlowExport, steps: Steps) -> None:
        self.texts, self.batches = tuple(sorted(export.text)), tuple(sorted(export.batches))
        self._program, self._export = program, export
        self._steps = 1 if steps == "first" else None

    def of(self, text: int, batch: int) -> FlowLoop:
        return FlowLoop(self._export, self._program, text, batch)

    def cut(self, frame: Any, text: int) -> Any:
        return replace(frame, prompt_ids=frame.prompt_ids[:text])

    def prefix(self, loop: FlowLoop, frame: Any, run: Run) -> None:
        loop.run([(frame, frame.noise[0])] * loop.step.batch, run, 0)

    def answers(self, loop: FlowLoop, frames: Sequence[Any], run: Run) -> None:
        for group in _groups(candidates_of(frames), loop.step.batch):
            loop.run(group, run, self._steps)


class _TokenLoops:
    def __init__(self, program: ModelProgram, export: TokenExport, steps: Steps) -> None:
        self.texts, self.batches = tuple(sorted(export.text)), tuple(sorted(export.batches))
        self._program, self._export = program, export
        answer = MOST_TOKENS if export.chunks else export.positions - export.fixed_rows - max(export.text)
        self._most = 2 if steps == "first" else answer

    def of(self, text: int, batch: int) -> TokenLoop:
        return TokenLoop(self._export, self._program, text, batch)

    def cut(self, frame: Any, text: int) -> Any:
        return frame if self._export.chunks else replace(frame, prompt_ids=frame.prompt_ids[:text])

    def prefix(self, loop: TokenLoop, frame: Any, run: Run) -> None:
        loop.run([frame] * loop.step.batch, run, 1)

    def answers(self, loop: TokenLoop, frames: Sequence[Any], run: Run) -> None:
        for group in _groups(frames, loop.step.batch):
            longest = max(len(frame.prompt_ids) for frame in group)
            room = self._export.positions - self._export.fixed_rows - longest + 1
            loop.run(group, run, max(min(self._most, room), 2))


class _Recording:
    """Runs stages by torch and keeps the inputs of the selected ones."""

    def __init__(self, found: dict[StageKey, list[Arrays]], wanted: Collection[StageGraph]) -> None:
        self._found = found
        self._wanted = {stage_key(stage) for stage in wanted}

    def __call__(self, stage: StageGraph, inputs: Arrays) -> list[Array]:
        key = stage_key(stage)
        if key in self._wanted:
            self._found[key].append(inputs)
        return run_torch(stage, inputs)


def _groups(items: Sequence[Item], size: int) -> Iterator[list[Item]]:
    """All items in groups of one size; the last group is filled up with the first items."""
    for start in range(0, len(items), size):
        yield [items[index % len(items)] for index in range(start, start + size)]
