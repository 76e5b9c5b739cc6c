"""Passes of a flow policy in every shape that sessions can bring about."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from edgeflow.engine.control.engine import FlowEngine
from edgeflow.engine.flow.frames import FlowFrame, Guidance
from edgeflow.scheduler.plan import FrameRef, Pass, Segment
from tests.engine.flow.random_flow import RandomFlowPolicy


class FlowPassesAtRandom:
    """Passes of any frames: prefixes, steps and whole chunks in any number, of any texts, cameras and guidance."""

    def __init__(self, engine: FlowEngine, policy: RandomFlowPolicy, slots: int) -> None:
        self._engine, self._policy, self._slots, self._dice = engine, policy, slots, random.Random(3)
        self._frames: dict[FrameRef, FlowFrame] = {}

    def run(self, prefixes: Sequence[int], steps: Sequence[int] = (), *, whole: bool = False) -> None:
        """prefixes, steps: slots."""
        sizes, begun = self._policy.sizes, []
        for slot in prefixes:
            ref = FrameRef(0, 1, slot)
            self._frames[ref] = frame = self._frame()
            rows, passes = self._engine.rows(frame), sizes.program.passes if whole else 1
            begun.append(Segment(sequence=ref, slot=slot, start=0, length=rows, stage=0, passes=passes))
        stepping = [
            Segment(
                sequence=(ref := FrameRef(0, 1, slot)),
                slot=slot,
                start=self._engine.rows(self._frames[ref]),
                length=sizes.step_rows,
                stage=self._dice.randint(1, sizes.steps),
                advances=False,
            )
            for slot in steps
        ]
        self._engine.launch(Pass(0, (*begun, *stepping)), self._frames)

    def run_any(self, count: int) -> None:
        self.run(range(self._slots))
        for _ in range(count):
            slots = self._dice.sample(range(self._slots), self._slots)
            prefixes, whole = self._dice.randint(0, 4), self._dice.random() < 0.2
            steps = self._dice.randint(0 if prefixes else 1, self._slots - prefixes)
            if whole:
                self.run(slots[: max(prefixes, 1)], whole=True)
            else:
                self.run(slots[:prefixes], slots[prefixes : prefixes + steps])

    def _frame(self) -> FlowFrame:
        dice, sizes, (frame,) = self._dice, self._policy.sizes, self._policy.shape.frames(1)
        target = Guidance(target=torch.zeros(sizes.horizon, sizes.dims), weights=torch.zeros(sizes.horizon), most=1.0)
        return replace(
            frame,
            pixel_values=frame.pixel_values[: dice.randint(1, 3)],
            prompt_ids=(1,) * dice.randint(1, self._engine.text_rows),
            guidance=target if dice.random() < 0.5 else None,
        )
