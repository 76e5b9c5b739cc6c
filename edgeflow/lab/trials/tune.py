"""The tuner: for each problem of a model, the fastest correct implementation on this machine.

A candidate is compared with the reference before it is timed, and wrong ones are left out. Parameters are searched one
after another from their defaults. The current implementation stays unless another is clearly faster, so that an
overlay holds no noise. A quantised weight gets one implementation for all numbers of rows, since each would keep its
own copy of it. Weights, keys and values are timed as in a pass: in memory, not in a cache.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from edgeflow.kernels.table.implementations import REFERENCE, Hardware, Implementation
from edgeflow.kernels.table.operator_table import OperatorKey, OperatorTable, known
from edgeflow.kernels.timing import Seconds, last_level_cache, median_us, rotating
from edgeflow.lab.trials.cases import Problem, TrialCase
from edgeflow.lab.trials.compare import ReferenceOutputs, tolerance

GAIN = 0.97  # a candidate must take at most this share of the default's time
SLOWER = 1.10  # an overlay's choice that takes more than this share of the default's time has regressed
Params = dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The best implementation of a case."""

    key: OperatorKey
    impl_id: str
    params: Params
    us: float
    default_us: float
    rejected: tuple[str, ...] = ()
    """Candidates that were left out, and why."""

    @property
    def share(self) -> float:
        """Its time as a share of the default's."""
        return self.us / self.default_us


@dataclass(frozen=True, slots=True)
class RecheckedEntry:
    """An entry of an overlay, checked again."""

    key: OperatorKey
    impl_id: str
    us: float
    default_us: float
    complaint: str


@dataclass(frozen=True, slots=True)
class _PreparedTrial:
    """A prepared case: the expected result, computed once, and separate copies of the operands for timing."""

    case: TrialCase
    expected: ReferenceOutputs
    ring: Sequence[Problem]

    def call(self, function: Callable[..., Any]) -> Callable[[], Any]:
        """The function on the next operands of the ring each time; whatever it derives from weights is derived for
        each.
        """
        return rotating([problem.given_to(function) for problem in self.ring])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuner:
    """Searches the implementations of one model on one device."""

    table: OperatorTable
    model_name: str
    device: torch.device
    dtype: torch.dtype
    samples: int = 15
    """Samples per candidate; their median counts."""
    clock: Seconds = time.perf_counter
    """The clock for a CPU."""
    cache_bytes: int = 0
    """The cache that must not hold the weights; 0: the device's."""

    def key(self, case: TrialCase) -> OperatorKey:
        """The context of a case on this machine."""
        stage, shape_sig = case.signed()
        key = OperatorKey(
            op_name=case.op_name,
            model_name=self.model_name,
            layer_role=case.layer_role,
            stage=stage,
            weight=case.weight,
            kv=case.kv,
            shape_sig=shape_sig,
        )
        return known(key, Hardware.of(self.device))

    @torch.inference_mode()
    def tune_together(self, cases: Sequence[TrialCase]) -> list[Tuned]:
        """Search all candidates for cases that one implementation must serve, each with its own parameters.

        The one with the smallest mean time relative to the defaults wins, unless it makes a case more than 10 %
        slower.
        """
        keys, trials = [self.key(case) for case in cases], [self._trial(case) for case in cases]
        served = [self.table.choose(key, Hardware.of(self.device), self.dtype) for key in keys]
        defaults = [trial.call(choice.load()) for trial, choice in zip(trials, served, strict=True)]
        times = [self._time({"default": default})["default"] for default in defaults]
        plain = [(choice.implementation.impl_id, dict(choice.params)) for choice in served]
        best = [
            Tuned(key=key, impl_id=impl_id, params=params, us=us, default_us=us)
            for key, (impl_id, params), us in zip(keys, plain, times, strict=True)
        ]
        least, rejected = GAIN, []
        for implementation in self._candidates(keys):
            params, complaint = self._search_all(trials, implementation)
            if complaint:
                rejected.append(f"{implementation.impl_id}: {complaint}")
            if complaint or [(implementation.impl_id, each) for each in params] == plain:
                continue
            timed = [
                self._against(key, default, trial, implementation, each)
                for key, default, trial, each in zip(keys, defaults, trials, params, strict=True)
            ]
            share = sum(each.share for each in timed) / len(timed)
            if share < least and max(each.share for each in timed) <= SLOWER:
                best, least = timed, share
        return [replace(each, rejected=tuple(rejected)) for each in best]

    def _against(
        self,
        key: OperatorKey,
        default: Callable[[], Any],
        trial: _PreparedTrial,
        implementation: Implementation,
        params: Params,
    ) -> Tuned:
        """An implementation, timed in turns with the default."""
        rival = trial.call(partial(implementation.load(), **params))
        times = self._time({"default": default, "rival": rival})
        return Tuned(
            key=key, impl_id=implementation.impl_id, params=params, us=times["rival"], default_us=times["default"]
        )

    @torch.inference_mode()
    def check(self, case: TrialCase, impl_id: str, params: Params) -> RecheckedEntry:
        """Check that a choice is still correct and not slower than the built-in one."""
        key = self.key(case)
        implementation = self.table.implementation(case.op_name, impl_id, case.kv)
        complaint = self.table.objection(implementation, key, Hardware.of(self.device), self.dtype)
        trial = None if complaint else self._trial(case)
        if trial is None or (complaint := self._compare(trial, implementation, params)):
            return RecheckedEntry(key, impl_id, math.nan, math.nan, complaint)
        served = self.table.choose(key, Hardware.of(self.device), self.dtype)
        chosen = partial(implementation.load(), **params)
        times = self._time({"default": trial.call(served.load()), "chosen": trial.call(chosen)})
        same = (served.implementation.impl_id, served.params) == (impl_id, params)
        slower = not same and times["chosen"] > SLOWER * times["default"]
        complaint = f"slower than the default by {times['chosen'] / times['default'] - 1:.0%}" if slower else ""
        return RecheckedEntry(key, impl_id, times["chosen"], times["default"], complaint)

    def _trial(self, case: TrialCase) -> _PreparedTrial:
        reference = self.table.implementation(case.op_name, REFERENCE, case.kv).load()
        expected = ReferenceOutputs.of(case, reference, self.device, self.dtype)
        cache_bytes = self.cache_bytes or last_level_cache(self.device)
        return _PreparedTrial(case, expected, case.ring(self.device, self.dtype, cache_bytes))

    def _candidates(self, keys: Sequence[OperatorKey]) -> Iterator[Implementation]:
        """All implementations that can run in each of these contexts, without the reference, which is written for
        readers; on CUDA, only those that a graph can replay.
        """
        first = keys[0]
        for impl_id in self.table.candidates(first.op_name, first.kv, first.weight):
            candidate = self.table.implementation(first.op_name, impl_id, first.kv)
            objections = (self.table.objection(candidate, key, Hardware.of(self.device), self.dtype) for key in keys)
            replayable = candidate.replayable or self.device.type != "cuda"
            if impl_id != REFERENCE and replayable and not any(objections):
                yield candidate

    def _search_all(self, trials: Sequence[_PreparedTrial], implementation: Implementation) -> tuple[list[Params], str]:
        """`_search` for each trial, up to the first failure."""
        found: list[Params] = []
        for trial in trials:
            params, complaint = self._search(trial, implementation)
            if complaint:
                return [], complaint
            found.append(params)
        return found, ""

    def _search(self, trial: _PreparedTrial, implementation: Implementation) -> tuple[Params, str]:
        """The fastest parameters, one parameter after another; or the reason why even the defaults fail."""
        complaint = self._compare(trial, implementation, {})
        if complaint:
            return {}, complaint
        best: Params = {}
        for name, values in implementation.choices.items():
            tried = {str(value): {**best, name: value} for value in values}
            right = {
                value: params
                for value, params in tried.items()
                if params[name] == values[0] or not self._compare(trial, implementation, params)
            }
            calls = {value: trial.call(partial(implementation.load(), **each)) for value, each in right.items()}
            times = self._time(calls)
            fastest = min(times, key=lambda value: times[value])
            if times[fastest] < GAIN * times[str(values[0])]:
                best = right[fastest]
        return best, ""

    def _compare(self, trial: _PreparedTrial, implementation: Implementation, params: Params) -> str:
        """Compare with the expected result: the reason if a candidate deviates or does not run, otherwise ""."""
        try:
            off = trial.expected.deviation(partial(implementation.load(), **params))
        except Exception as error:  # any error of a compiler or a device excludes only this candidate
            return f"does not run ({type(error).__name__})"
        allowed = tolerance(trial.case, self.dtype, implementation.weight, implementation.deviation)
        return "" if off <= allowed else f"deviates by {off:.2g}, allowed are {allowed:.2g}"

    def _time(self, calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
        return median_us(calls, self.device, self.samples, self.clock)
