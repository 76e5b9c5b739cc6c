"""The conformance kit: every check of a family of policies, in order, on one checkpoint.

The policy is loaded three times: twice in float32, since two loads must answer alike, and once in 16 bits.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import torch

from edgeflow.config.service import ServiceConfig
from edgeflow.engine.placement import choose_device, choose_dtype
from edgeflow.lab.conformance.answers import (
    check_batch,
    check_chunk,
    check_delay,
    check_deterministic,
    check_finite,
    check_inputs,
    check_modes,
    check_rows,
    check_state,
)
from edgeflow.lab.conformance.bench import BenchAnswer
from edgeflow.lab.conformance.importing import check_import
from edgeflow.lab.conformance.rejected import check_rejects
from edgeflow.lab.conformance.resources import PrecisionSample, check_dtypes, check_memory, check_time
from edgeflow.lab.conformance.subject import LoadedSubject
from edgeflow.lab.conformance.verdicts import NotConforming, NotJudged, PolicyCheck, PolicyVerdict
from edgeflow.lab.progress import Report

IMPORT, LOAD = "import", "load"
REPEATABLE = ("finite", "deterministic", "state")
"""Without these, differences between answers say nothing."""
CHECKS: dict[str, tuple[Callable[[LoadedSubject], str], tuple[str, ...]]] = {
    "finite": (check_finite, ()),
    "chunk": (check_chunk, ()),
    "rows": (check_rows, ()),
    "deterministic": (check_deterministic, ()),
    "state": (check_state, REPEATABLE[:-1]),
    "inputs": (check_inputs, REPEATABLE),
    "delay": (check_delay, REPEATABLE),
    "batch": (check_batch, REPEATABLE),
    "modes": (check_modes, REPEATABLE),
    "rejects": (check_rejects, REPEATABLE),
}
"""Checks of the policy in float32, with the checks that each needs."""


def check_policy(
    config: ServiceConfig,
    most_ms: float | None = None,
    report: Report = lambda what, done, total: None,  # noqa: ARG005
) -> list[PolicyVerdict]:
    """The verdicts on a checkpoint, in the order of the checks; of the first ones only where it cannot be loaded.

    most_ms: the most time of an answer; None = the time that its actions cover. CheckpointError where there is no such
    model.
    """
    checks = _checks(config, most_ms)
    verdicts: list[PolicyVerdict] = []
    with torch.no_grad():
        for done, check in enumerate(checks):
            report(check.name, done, len(checks))
            verdict = check.verdict({each.name for each in verdicts if each.failed})
            verdicts.append(verdict)
            if verdict.failed and verdict.name in (IMPORT, LOAD):
                break
    return verdicts


def _checks(config: ServiceConfig, most_ms: float | None) -> list[PolicyCheck]:
    loads = _Loads(config, most_ms)
    path = config.model_path
    half_served = choose_dtype(config.dtype, choose_device(config.device)) != torch.float32
    served = loads.half if half_served else loads.exact
    time = PolicyCheck("time", lambda: check_time(served()))
    return [
        PolicyCheck(IMPORT, lambda: check_import(config, path)),
        PolicyCheck(LOAD, loads.first),
        *(PolicyCheck(name, partial(loads.judge, run), needs) for name, (run, needs) in CHECKS.items()),
        *([] if half_served else [time]),
        PolicyCheck("dtypes", lambda: check_dtypes(loads.half(), loads.sample), REPEATABLE),
        PolicyCheck("memory", lambda: check_memory(loads.half()), ("dtypes",)),
        *([time] if half_served else []),
    ]


class _Loads:
    """The policy in one precision after the other; at most one is in memory."""

    def __init__(self, config: ServiceConfig, most_ms: float | None) -> None:
        exact, half = ("float32", "bfloat16") if config.dtype in ("auto", "float32") else (config.dtype, config.dtype)
        self._configs = {each: config.model_copy(update={"dtype": each}) for each in (exact, half)}
        self._exact, self._half = exact, half
        self._most_ms = most_ms
        self._earlier: list[BenchAnswer] = []
        self._held: dict[str, LoadedSubject] = {}
        self.sample: PrecisionSample | None = None
        """The answers in float32; None where only 16 bits were asked for."""

    def first(self) -> str:
        """Load it for the first time."""
        subject = self._loaded(self._exact)
        self._earlier = subject.first
        self._release()
        return f"on {subject.built.device_name}; {len(self._earlier)} frames are answered"

    def exact(self) -> LoadedSubject:
        """In float32, or in the precision that the configuration names."""
        return self._loaded(self._exact)

    def judge(self, check: Callable[[LoadedSubject], str]) -> str:
        """A check in that precision. After an unexpected error the policy may be in any state, and is loaded again."""
        try:
            return check(self.exact())
        except (NotConforming, NotJudged):
            raise
        except Exception:
            self._release()
            raise

    def half(self) -> LoadedSubject:
        """In 16 bits."""
        if self.sample is None and self._half != self._exact:
            self.sample = PrecisionSample.of(self.exact())
        return self._loaded(self._half)

    def _loaded(self, dtype: str) -> LoadedSubject:
        if dtype not in self._held:
            self._release()
            subject = LoadedSubject.load(self._configs[dtype], self._most_ms, self._earlier)
            self._held[dtype] = subject
            subject.answer_first_episode()
        return self._held[dtype]

    def _release(self) -> None:
        """Free the memory of a policy, which may be part of a cycle."""
        if self._held:
            self._held.clear()
            gc.collect()
