"""The tuner: for each problem of a model the fastest implementation that is right on this machine.

A candidate is compared with the reference before it is timed, and one that is off is left out. Parameters are searched
one after the other from their defaults. What served so far is kept unless another is clearly faster, so that an overlay
holds no noise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from edgeflow.kernels.cases import Case, Problem
from edgeflow.kernels.compare import deviation, tolerance
from edgeflow.kernels.dimensions import KINDS
from edgeflow.kernels.implementations import REFERENCE, Hardware, Implementation
from edgeflow.kernels.table import OperatorKey, OperatorTable
from edgeflow.kernels.timing import Seconds, median_us

GAIN = 0.97  # a candidate must take at most this share of the default's time
SLOWER = 1.10  # an overlay's choice that takes more than this share of the default's time has regressed
Params = dict[str, int]


@dataclass(frozen=True, slots=True)
class Tuned:
    """What serves a case best. rejected: candidates that could not be taken, and why."""

    key: OperatorKey
    impl_id: str
    params: Params
    us: float
    default_us: float
    rejected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one entry of an overlay, looked at again."""

    key: OperatorKey
    impl_id: str
    us: float
    default_us: float
    complaint: str


@dataclass(frozen=True, slots=True)
class Tuner:
    """samples: of each candidate, the median of which counts. clock: of a CPU."""

    table: OperatorTable
    model_name: str
    device: torch.device
    dtype: torch.dtype
    samples: int = 15
    clock: Seconds = time.perf_counter

    def key(self, case: Case) -> OperatorKey:
        """The context of a case on this machine."""
        stage, shape_sig = case.signed()
        profile = Hardware.of(self.device).profile
        return OperatorKey(
            case.op_name, self.model_name, profile, KINDS[case.op_name], case.layer_role, stage, shape_sig
        )

    @torch.inference_mode()
    def tune(self, case: Case) -> Tuned:
        """Search all candidates of a case."""
        key = self.key(case)
        problem = case.problem(self.device, self.dtype)
        served = self.table.choose(key, Hardware.of(self.device), self.dtype)
        default = served.load()
        best = served.implementation.impl_id, dict(served.params)
        default_us = best_us = self._time({"default": problem.given_to(default)})["default"]
        rejected: list[str] = []
        for implementation in self._candidates(key):
            params, complaint = self._search(case, problem, implementation)
            if complaint:
                rejected.append(f"{implementation.impl_id}: {complaint}")
            if complaint or (implementation.impl_id, params) == (served.implementation.impl_id, served.params):
                continue
            rival = problem.given_to(partial(implementation.load(), **params))
            times = self._time({"default": problem.given_to(default), "rival": rival})
            if times["rival"] < GAIN * times["default"] and times["rival"] < best_us:
                best, best_us, default_us = (implementation.impl_id, params), times["rival"], times["default"]
        return Tuned(key, *best, best_us, default_us, tuple(rejected))

    @torch.inference_mode()
    def check(self, case: Case, impl_id: str, params: Params) -> Verdict:
        """Whether a choice is still right and not slower than the built-in one."""
        key = self.key(case)
        implementation = self.table.implementation(case.op_name, impl_id)
        complaint = self.table.objection(implementation, Hardware.of(self.device), self.dtype, key.shape_sig)
        complaint = complaint or self._compare(case, implementation, params)
        if complaint:
            return Verdict(key, impl_id, math.nan, math.nan, complaint)
        problem = case.problem(self.device, self.dtype)
        served = self.table.choose(key, Hardware.of(self.device), self.dtype)
        chosen = partial(implementation.load(), **params)
        times = self._time({"default": problem.given_to(served.load()), "chosen": problem.given_to(chosen)})
        same = (served.implementation.impl_id, served.params) == (impl_id, params)
        slower = not same and times["chosen"] > SLOWER * times["default"]
        complaint = f"slower than the default by {times['chosen'] / times['default'] - 1:.0%}" if slower else ""
        return Verdict(key, impl_id, times["chosen"], times["default"], complaint)

    def _candidates(self, key: OperatorKey) -> Iterator[Implementation]:
        """All that may run there but the reference, which is written to be read; on CUDA, what graphs may hold."""
        for impl_id in self.table.candidates(key.op_name):
            candidate = self.table.implementation(key.op_name, impl_id)
            objection = self.table.objection(candidate, Hardware.of(self.device), self.dtype, key.shape_sig)
            held = candidate.replayable or self.device.type != "cuda"
            if impl_id != REFERENCE and held and not objection:
                yield candidate

    def _search(self, case: Case, problem: Problem, implementation: Implementation) -> tuple[Params, str]:
        """The fastest parameters, one parameter after the other; or why not even the defaults will do."""
        complaint = self._compare(case, implementation, {})
        if complaint:
            return {}, complaint
        best: Params = {}
        for name, values in implementation.choices.items():
            tried = {str(value): {**best, name: value} for value in values}
            right = {
                value: params
                for value, params in tried.items()
                if params[name] == values[0] or not self._compare(case, implementation, params)
            }
            calls = {value: problem.given_to(partial(implementation.load(), **each)) for value, each in right.items()}
            times = self._time(calls)
            fastest = min(times, key=lambda value: times[value])
            if times[fastest] < GAIN * times[str(values[0])]:
                best = right[fastest]
        return best, ""

    def _compare(self, case: Case, implementation: Implementation, params: Params) -> str:
        """Why it is not right, "" when it is; a candidate that fails to run is not right either."""
        reference = self.table.implementation(case.op_name, REFERENCE).load()
        try:
            off = deviation(case, partial(implementation.load(), **params), reference, self.device, self.dtype)
        except Exception as error:  # whatever a compiler or a device says, another candidate serves
            return f"does not run ({type(error).__name__})"
        allowed = tolerance(case, self.dtype, implementation.precision)
        return "" if off <= allowed else f"deviates by {off:.2g}, allowed are {allowed:.2g}"

    def _time(self, calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
        return median_us(calls, self.device, self.samples, self.clock)
