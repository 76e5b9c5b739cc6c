"""Checks of what a policy rejects: typed errors, never an answer, and no trace of it in the next answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from edgeflow.contract import Observation
from edgeflow.engine.control.offline import decode_serially
from edgeflow.engine.control.samples import uncounted
from edgeflow.lab.conformance.subject import LoadedSubject
from edgeflow.lab.conformance.verdicts import NotConforming, place_of
from edgeflow.policies.registry import family_of
from edgeflow_client.errors import EdgeflowError, RequestError, StartError

UNKNOWN = "a_setting_that_no_family_has"
WORDS = 5000  # of an instruction that is too long
ADVICE = "raise InvalidArgument (image_of and vector_of of edgeflow.policies.tensors do) before any tensor is made"


def check_rejects(subject: LoadedSubject) -> str:
    """Bad frames and settings are rejected, and leave no trace."""
    frame, right = subject.episode[0], subject.first[0]
    rejected = []
    with uncounted(subject.policy):
        for what, bad in bad_frames(frame):
            if not _rejects(what, partial(_holds, subject, bad)):
                raise NotConforming(f"{what} is answered", ADVICE)
            if not subject.bench.alone(frame).same(right):
                raise NotConforming(
                    f"after {what}, a good frame is answered differently", "check before changing state"
                )
            rejected.append(what)
    rejected += _long_instruction(subject, frame)
    _unknown_setting(subject)
    return f"rejected: {', '.join([*rejected, 'an unknown setting'])}"


def bad_frames(frame: Observation) -> Iterator[tuple[str, Observation]]:
    """Frames without cameras, and with wrong numbers in each state vector."""
    if frame.images:
        yield "a frame without cameras", replace(frame, images={})
    for name, values in frame.state.items():
        others = {"no": (), "one number too many in": (*values, 0.0), "NaN in": (math.nan, *values[1:])}
        for what, wrong in others.items():
            yield f"{what} {name}", replace(frame, state={**frame.state, name: wrong})


def _holds(subject: LoadedSubject, bad: Observation) -> bool:
    """True for a frame whose answer is not finite, so that the robot holds."""
    with subject.prompts(bad) as prompts:
        found = decode_serially(subject.engine, prompts)[0].sampled
    return not (found.finite and np.isfinite(subject.engine.actions(found, subject.unnorm_key)).all())


def _long_instruction(subject: LoadedSubject, frame: Observation) -> list[str]:
    """An instruction beyond the limit, where the policy reads it and does not cut it."""
    text = "pick " * WORDS
    if subject.policy.text_rows(text) <= subject.engine.text_rows:
        return []
    if not _rejects("a long instruction", lambda: subject.bench.alone(replace(frame, instruction=text)) is None):
        raise NotConforming("an instruction beyond max_prompt_tokens is answered", "let text_rows count all its tokens")
    return ["a long instruction"]


def _unknown_setting(subject: LoadedSubject) -> None:
    path, policy = subject.config.model_path, subject.config.policy
    family = family_of(path, policy.family)
    check: Callable[..., object] = family.check
    try:
        check(path, {**policy.settings, UNKNOWN: 1})
    except StartError:
        return
    raise NotConforming("`check` accepts a setting that does not exist", "raise ConfigError that names policy.KEY")


def _rejects(what: str, run: Callable[[], bool]) -> bool:
    """True where `run` raises the typed error of a rejection, and the result of `run` otherwise; NotConforming for
    other errors."""
    try:
        return run()
    except RequestError:
        return True
    except EdgeflowError:
        raise
    except Exception as error:
        raise NotConforming(f"{what} raises {type(error).__name__} at {place_of(error)}", ADVICE) from error
