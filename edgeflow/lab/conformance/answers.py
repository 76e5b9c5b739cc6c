"""Checks of answers: their form, what they depend on, and what they must not depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgeflow.contract import Observation
from edgeflow.engine.control.samples import brightened
from edgeflow.engine.control.warmup import chunk_objection, warm_up
from edgeflow.engine.policy import INSTRUCTION
from edgeflow.lab.conformance.bench import BenchAnswer
from edgeflow.lab.conformance.subject import LoadedSubject
from edgeflow.lab.conformance.verdicts import NotConforming, NotJudged

TRIES = 3  # changes of an input before it counts as ignored
INSTRUCTIONS = (INSTRUCTION, "put the cup on the plate", "open the top drawer", "stop")
LIMIT_SLACK = 1e-6  # of a limit, for rounding
RATE_SLACK = 0.01


def check_finite(subject: LoadedSubject) -> str:
    """Answers have no NaN and no infinity."""
    for number, answer in enumerate(subject.first, start=1):
        _finite(answer, f"answer {number}")
    return f"{len(subject.first)} answers are finite"


def check_chunk(subject: LoadedSubject) -> str:
    """Chunks have the shape, the step and the limits of the schema."""
    schema, first = subject.schema, subject.first
    dims = len(schema.names)
    shape = first[0].values.shape
    if shape != (schema.horizon, dims):
        advice = "make `actions` return [horizon, D] as `action_schema` states it"
        raise NotConforming(f"an answer is {list(shape)}; the schema says [{schema.horizon}, {dims}]", advice)
    if schema.horizon > 1 and schema.control_rate_hz:
        rate_hz = 1000 / schema.step_ms
        if abs(rate_hz / schema.control_rate_hz - 1) > RATE_SLACK:
            found = f"step_ms is {schema.step_ms:g}, which is {rate_hz:g} Hz; control_rate_hz is"
            raise NotConforming(f"{found} {schema.control_rate_hz:g}", "let step_ms be 1000 / control_rate_hz")
    low, high = np.array(schema.low), np.array(schema.high)
    if not (low <= high).all():
        name = schema.names[int(np.argmin(low <= high))]
        raise NotConforming(f"low of {name} is above high", "let low be at most high for every number")
    _within(subject, np.concatenate([answer.values for answer in first]))
    rate = f", {schema.control_rate_hz:g} Hz" if schema.control_rate_hz else ""
    return f"{schema.horizon} x {dims} within limits{rate}"


def check_rows(subject: LoadedSubject) -> str:
    """Prompts and passes are as large and as many as the policy declares."""
    policy, program = subject.policy, subject.program
    for seed, instruction in enumerate(INSTRUCTIONS, start=1):
        frame = subject.frame(seed, instruction=instruction)
        declared = policy.fixed_rows + policy.text_rows(instruction, frame.state)
        with subject.prompts(frame) as (prompt,):
            taken = subject.engine.rows(prompt)
        if taken != declared:
            advice = "let text_rows count the tokens of `prepare`, and fixed_rows all other rows of a prompt"
            raise NotConforming(f"{instruction!r} takes {taken} rows; fixed_rows + text_rows is {declared}", advice)
        if policy.text_rows(instruction) < policy.text_rows(instruction, frame.state):
            found = f"{instruction!r} takes more rows with a state than without one"
            raise NotConforming(found, "let text_rows(instruction) be the most that any state gives")
    passes = subject.first[0].passes
    if passes != program.passes and not subject.engine.runs_whole:
        found = f"an answer took {passes} passes; the program has {program.passes}"
        raise NotConforming(found, "let `program` state every pass of an answer")
    return f"passes: {program.passes}; rows: {policy.fixed_rows} and those of the text"


def check_deterministic(subject: LoadedSubject) -> str:
    """Two loads answer the same frames with the same bits. Noise follows from seed and stamp."""
    for number, (one, other) in enumerate(zip(subject.earlier, subject.first, strict=True), start=1):
        if not one.same(other):
            raise NotConforming(
                f"loaded twice, the policy answers frame {number} of an episode differently, {apart(one, other)}",
                "take noise from a generator of your own, seeded by a setting and observation.stamp_ns",
            )
    if not subject.denoises:
        return "the same bits after loading again"
    frame = subject.episode[0]
    if subject.bench.alone(replace(frame, stamp_ns=frame.stamp_ns + 1)).same(subject.first[0]):
        raise NotConforming("noise is the same for every stamp", "seed the noise with observation.stamp_ns")
    return "the same bits after loading again; other noise with another stamp"


def check_state(subject: LoadedSubject) -> str:
    """Answers do not depend on earlier frames, of this robot or of others, beyond what the policy declares."""
    bench, episode, right = subject.bench, subject.episode, subject.first
    _agree(right, bench.episode(episode), "in the second episode")
    with bench.robots() as (session,):
        bench.episode([subject.frame(100 + at, at) for at in range(1, len(episode) + 1)], session)
        bench.reset(session)
        _agree(right, bench.episode(episode, session), "after reset")
    if subject.robots > 1:
        with bench.robots(2) as (one, other):
            found: list[BenchAnswer] = []
            for at, frame in enumerate(episode, start=1):
                bench.together({other: subject.frame(100 + at, at)})
                found += bench.episode([frame], one)
            _agree(right, found, "beside another robot")
    if subject.keeps_state:
        return "state per session only, and none after reset"
    count = subject.history
    window = episode[-count:]
    _agree(right[-1:], bench.episode([subject.frame(200, 0), *window])[-1:], "after other frames")
    if count == 1:
        _agree(right[-1:], [bench.alone(window[0])], "without earlier frames")
        return "no answer depends on earlier frames"
    return f"answers depend on the last {count} frames only, and on none before reset"


def check_inputs(subject: LoadedSubject) -> str:
    """Every declared input changes the answer."""
    inputs = subject.inputs
    frame, right = subject.episode[0], subject.first[0]
    others = [subject.frame(seed) for seed in range(300, 300 + TRIES)]
    for camera in inputs.cameras:
        name = camera.name
        changed = [replace(frame, images={**frame.images, name: other.images[name]}) for other in others]
        _changes(subject, right, changed, f"the camera {name}")
    for vector in inputs.state:
        name = vector.name
        changed = [replace(frame, state={**frame.state, name: other.state[name]}) for other in others]
        _changes(subject, right, changed, f"the state {name}")
    rows = {subject.policy.text_rows(instruction) for instruction in INSTRUCTIONS}
    if len(rows) > 1:
        changed = [replace(frame, instruction=instruction) for instruction in INSTRUCTIONS[1:]]
        _changes(subject, right, changed, "the instruction, whose text has rows,")
    if subject.history > 1:
        count = len(subject.episode)
        earlier = [subject.frame(300 + at, at) for at in range(1, count)]
        if subject.bench.episode([*earlier, subject.episode[-1]])[-1].same(subject.first[-1]):
            raise NotConforming("earlier frames do not change the answer", "use every frame of the window in `joined`")
    used = [*(each.name for each in inputs.cameras), *(each.name for each in inputs.state)]
    return f"used: {', '.join([*used, *['instruction'] * (len(rows) > 1)])}"


def check_delay(subject: LoadedSubject) -> str:
    """A declared delay changes the answer, from 0 to its most; equal delays give equal answers."""
    most = subject.inputs.most_delay_ms
    if not most:
        raise NotJudged("the policy takes no delay")
    bench, frame, right = subject.bench, subject.episode[0], subject.first[0]
    answers = {0.0: right}
    for delay_ms in (most, most / 2):
        when = f"with a delay of {delay_ms:g} ms"
        found, again = (bench.alone(replace(frame, delay_ms=delay_ms)) for _ in range(2))
        if not again.same(found):
            advice = "let the answer depend on delay_ms and the frames only"
            raise NotConforming(f"the same frame is answered differently {when}, {apart(found, again)}", advice)
        if found.values.shape != right.values.shape:
            advice = "make `actions` return [horizon, D] whatever the delay is"
            raise NotConforming(f"an answer is {list(found.values.shape)} {when}", advice)
        _finite(found, f"the answer {when}")
        _within(subject, found.values)
        if any(found.same(each) for each in answers.values()):
            advice = "use delay_ms in `prepare`, with a history in `joined`, or take most_delay_ms out of `inputs`"
            raise NotConforming(f"another delay does not change the answer {when}", advice)
        answers[delay_ms] = found
    return f"used, 0 to {most:g} ms"


def check_batch(subject: LoadedSubject) -> str:
    """Frames that share a pass are answered as each of them by itself, in any order."""
    if subject.robots < 2:
        raise NotJudged("the policy serves one robot")
    bench = subject.bench
    frames = [subject.frame(seed) for seed in range(1, subject.robots + 1)]
    right = [bench.alone(frame) for frame in frames]
    shared = 0
    brighter = (lambda: _stacked([bench.alone(each) for each in brightened(frames)])) if subject.rounds else None
    for turn in range(len(frames)):
        order = [(turn + index) % len(frames) for index in range(len(frames))]
        with bench.robots(len(frames)) as sessions:
            answers = bench.together({session: frames[index] for session, index in zip(sessions, order, strict=True)})
        found = [answers[session] for session in sessions]
        shared = max(shared, *(answer.shared for answer in found))
        fault = chunk_objection(_stacked([right[index] for index in order]), _stacked(found), brighter)
        if fault:
            how = "in another order" if turn else "in one pass"
            advice = "let row i of `run` answer frame i of `batch`, whatever the others are; mask padding"
            raise NotConforming(f"{len(frames)} robots {how} are not answered as each by itself: {fault}", advice)
    return f"{shared} robots in a pass, in {len(frames)} orders" if shared > 1 else "robots take turns"


def check_modes(subject: LoadedSubject) -> str:
    """The ways of sharing passes that the worker checks before it is ready."""
    if subject.program.passes == 1:
        raise NotJudged("an answer is one pass")
    warm_up(subject.engine, subject.built.limits.shift, lambda *_: None, rounds=subject.built.rounds)
    return "frames that overlap are answered as each alone"


def apart(one: BenchAnswer, other: BenchAnswer) -> str:
    """How far answers are apart."""
    if one.values.shape != other.values.shape:
        return f"{list(one.values.shape)} and {list(other.values.shape)}"
    return f"by up to {np.nanmax(np.abs(one.values - other.values)):.3g}"


def _finite(answer: BenchAnswer, what: str) -> None:
    bad = np.argwhere(~np.isfinite(answer.values))
    if len(bad):
        row, column = bad[0]
        found = f"{what} has {answer.values[row, column]} in row {row}, number {column}"
        raise NotConforming(found, "look for a division by 0 or a statistic of 0 in `run` and `actions`")


def _within(subject: LoadedSubject, values: np.ndarray) -> None:
    """Reject rows [n, D] beyond the limits of the schema."""
    schema = subject.schema
    low, high = np.array(schema.low), np.array(schema.high)
    slack = LIMIT_SLACK * np.maximum(1, np.abs(np.where(np.isfinite(values), values, 0)))
    outside = np.argwhere((values < low - slack) | (values > high + slack))
    if len(outside):
        row, column = outside[0]
        found = f"{schema.names[column]} is {values[row, column]:.4g}; its limits are {low[column]:g} to "
        raise NotConforming(f"{found}{high[column]:g}", "clip in `actions`: robots HOLD instead of such an action")


def _agree(right: Sequence[BenchAnswer], found: Sequence[BenchAnswer], when: str) -> None:
    for number, (one, other) in enumerate(zip(right, found, strict=True), start=1):
        if not one.same(other):
            raise NotConforming(
                f"frame {number} is answered differently {when}, {apart(one, other)}",
                "keep nothing between frames but what `history` or `begin` and `end` declare",
            )


def _changes(subject: LoadedSubject, right: BenchAnswer, frames: Sequence[Observation], what: str) -> None:
    if all(subject.bench.alone(frame).same(right) for frame in frames):
        advice = "use it in `prepare` and `run`, or take it out of `inputs`"
        raise NotConforming(f"{what} does not change the answer", advice)


def _stacked(answers: Sequence[BenchAnswer]) -> np.ndarray:
    return np.stack([answer.values for answer in answers])
