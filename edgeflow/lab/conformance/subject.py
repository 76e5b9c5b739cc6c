"""A loaded policy with what its checks share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Observation, PolicyInputs, StageProgram
from edgeflow.engine.control.engine import PassEngine
from edgeflow.engine.control.history import first_prompts, has_sessions
from edgeflow.engine.policy import INSTRUCTION, Policy
from edgeflow.lab.conformance.bench import Bench, BenchAnswer, random_frame
from edgeflow.policies.registry import family_of
from edgeflow.worker.build import BuiltEngine, build_engine
from edgeflow_client.types import ActionSchema

SECOND_NS = 1_000_000_000
EPISODE = 3
"""Frames of the episode that every load answers first; more where the policy asks for more observations."""


@dataclass(kw_only=True)
class LoadedSubject:
    """A policy as the worker loads it, with the answers to the first episode after loading."""

    config: ServiceConfig
    built: BuiltEngine
    unnorm_key: str
    most_ms: float | None
    """The most time of an answer; None = the time that its chunk covers."""
    earlier: list[BenchAnswer]
    """The answers of an earlier load to the same episode; empty for the first load."""
    first: list[BenchAnswer] = field(default_factory=list)
    """The answers of this load to it."""

    @classmethod
    def load(
        cls, config: ServiceConfig, most_ms: float | None = None, earlier: list[BenchAnswer] | None = None
    ) -> LoadedSubject:
        """Check it as control does, and load it; StartErrors as in build_engine."""
        path = config.model_path
        family_of(path, config.policy.family).check(path, config.policy.settings)
        built = build_engine(config)
        key = config.unnorm_key or built.engine.policy.unnorm_keys[0]
        return cls(config=config, built=built, unnorm_key=key, most_ms=most_ms, earlier=earlier or [])

    @property
    def engine(self) -> PassEngine:
        return self.built.engine

    @property
    def policy(self) -> Policy:
        return self.built.engine.policy

    @property
    def inputs(self) -> PolicyInputs:
        return self.policy.inputs

    @property
    def history(self) -> int:
        """The observations that an answer needs."""
        return self.inputs.history

    @property
    def keeps_state(self) -> bool:
        """True for a policy that says that it keeps state per session."""
        return has_sessions(self.policy)

    @property
    def denoises(self) -> bool:
        """True for answers that begin as noise, which the frame's stamp gives; False where it is scaled to zero."""
        if not self.program.step_rows:
            return False
        with first_prompts(self.policy, self.episode[:1]) as (prompt,):
            return bool(prompt.noise.any())

    @property
    def rounds(self) -> bool:
        """True where sums are rounded to 16 bits or fewer, so that shared passes give other numbers."""
        return self.built.rounds or self.config.dtype != "float32"

    @cached_property
    def program(self) -> StageProgram:
        return self.policy.program(self.unnorm_key)

    @cached_property
    def schema(self) -> ActionSchema:
        return self.policy.action_schema(self.unnorm_key)

    @cached_property
    def bench(self) -> Bench:
        return Bench(self.built, self.unnorm_key)

    @cached_property
    def robots(self) -> int:
        """Robots whose frames are tried in one pass."""
        return min(3, self.engine.sessions)

    def answer_first_episode(self) -> None:
        """Answer the first episode after loading, before anything else is asked."""
        self.first = self.bench.episode(self.episode)

    @cached_property
    def episode(self) -> list[Observation]:
        return [self.frame(seed) for seed in range(1, max(EPISODE, self.history + 1) + 1)]

    def prompts(self, *frames: Observation) -> AbstractContextManager[list[Any]]:
        """The prepared inputs of frames that are each the first of an episode."""
        return first_prompts(self.policy, frames)

    def frame(self, seed: int, at: int | None = None, *, instruction: str = INSTRUCTION) -> Observation:
        """A random frame with the stamp of the frame `at` of an episode, from 1; by default the seed is its place."""
        step_ns = round(self.inputs.history_step_ms * 1e6) or SECOND_NS
        stamp_ns = (seed if at is None else at) * step_ns
        return replace(random_frame(self.inputs, seed, instruction), stamp_ns=stamp_ns)
