"""Passes of real workers with scripted robots, replayed: equal bit for bit, and every change is seen where it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch

from benchmarks.recording.exact import SHARED, scripts
from benchmarks.recording.robots import MemoryRecording, RobotScript, ScriptedRun
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import Pace, Speculation
from edgeflow.engine import executor
from edgeflow.lab.recordings import pass_replay
from edgeflow.lab.recordings.exact import ready_engine, replay_exactly, replay_on
from edgeflow.lab.recordings.exact_report import ExactReport
from edgeflow.version import __version__
from edgeflow.worker import build
from edgeflow.worker.build import BuiltEngine
from edgeflow_client.errors import CheckpointError, FailedPrecondition
from edgeflow_client.recording.records import RecordedObservation
from tests.engine import recorded_graphs

DEMO = ServiceConfig(**SHARED)
NOISY = ServiceConfig(
    model="demo-flow", device="cpu", max_sessions=2, policy={"noise_scale": 1.0, "noise_seed": 3, "candidates": 2}
)
RUNS: dict[str, dict[str, Any]] = {
    "demo depth 3": {"robots": 2, "answers": 12, "seed": 4},
    "demo speculative, 2 bins, 3 passes": {"robots": 3, "answers": 20, "seed": 5, "other_paces": (Pace(3), Pace(1))},
    "demo-flow pipelined": {"robots": 3, "answers": 16},
    "demo-flow serial, rtc": {"robots": 2, "answers": 12},
    "act": {"robots": 3, "answers": 12},
    "openvla-oft": {"robots": 4, "answers": 16},
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ScriptedRun]:
    """recorded(name) is one of the scripts of the benchmark, busier and shorter, that has run."""
    every = dict(scripts(tmp_path_factory.mktemp("oft")))

    @cache
    def run(name: str) -> ScriptedRun:
        run = ScriptedRun(replace(every[name], **RUNS[name], reset=0.1, parked=0.05, burst=0.3))
        run.run()
        return run

    return run


@pytest.mark.parametrize("name", RUNS)
def test_answers_are_equal_bit_for_bit(recorded, name):
    run = recorded(name)
    report = replay_exactly(run.recording)
    assert report.agrees and report.exact and not report.machine and not report.differences, report.lines()
    assert report.answers == report.equal == run.answers >= RUNS[name]["answers"]
    assert report.workers == 2 and not report.not_comparable and not report.lost
    assert report.lines()[-1] == "agrees bit for bit"
    assert msgspec.json.decode(msgspec.json.encode(report.as_json()))["agrees"]


def test_the_scripts_have_what_a_replay_may_trip_over(recorded):
    every = [record for name in RUNS for record in recorded(name).recording.kinds()]
    kinds = {each["kind"] for each in every}
    assert kinds == {"engine", "opened", "closed", "reset", "seen", "frame", "pass", "commit"}
    left = {departure["reason"] for each in every for departure in each.get("left", ())}
    assert left >= {"done", "superseded", "epoch_changed", "closed"}
    assert any(each["kind"] == "frame" and not each.get("rows") for each in every), "rejected for its text"
    assert any(len(outcome.get("tokens", ())) > 1 for each in every for outcome in each.get("outcomes", ())), "drafts"
    answers = [answer for each in every for answer in each.get("answers", ())]
    assert any(answer["report"]["continues"] for answer in answers)
    changing = recorded("demo speculative, 2 bins, 3 passes").recording.kinds("pass")
    prompts = [
        each for record in changing for each in record.get("planned", {}).get("segments", ()) if not each["stage"]
    ]
    drafts = {bool(each["drafts"]) for each in prompts if each["sequence"]["session"] == 1}
    assert drafts == {True, False}, "the mode of the first robot changed"


def test_a_checkpoint_that_was_moved_is_asked_for(tmp_path):
    (tmp_path / "oft").mkdir()
    script = replace(dict(scripts(tmp_path / "oft"))["openvla-oft"], answers=1, lost_workers=0)
    recording = ScriptedRun(script).run()
    moved = (tmp_path / "oft").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="--model"):
        replay_exactly(recording)
    assert replay_exactly(recording, str(moved)).agrees


class Subject:
    """A recording, and an engine like the one that made it."""

    def __init__(self) -> None:
        script = RobotScript(
            config=NOISY, pace=Pace(2), robots=2, answers=16, continues=True, reset=0.2, lost_workers=0, seed=2
        )
        self.recording = ScriptedRun(script).run()
        self.built: BuiltEngine = ready_engine(NOISY)

    def replay(self, recording: MemoryRecording | None = None) -> ExactReport:
        return replay_on(self.built, NOISY, recording or self.recording)

    @property
    def first_answer(self) -> tuple[int, int, int]:
        """The pass, session and number of the answer that comes first."""
        commit = next(each for each in self.recording.kinds("commit") if "answers" in each)
        return commit["pass_number"], commit["answers"][0]["session"], commit["answers"][0]["seq"]


@pytest.fixture(scope="module")
def subject() -> Iterator[Subject]:
    yield Subject()


def test_a_changed_pixel_is_seen_with_its_frame_and_pass(subject):
    passes = subject.recording.kinds("pass")
    wanted = [ref for record in passes for ref in record.get("begun", ())][4]
    number = next(each["planned"]["number"] for each in passes if wanted in each.get("begun", ()))
    frames = list(subject.recording.frames)
    for index, (record, images) in enumerate(frames):
        begins = isinstance(record, RecordedObservation) and record.seq == wanted["seq"]
        if begins and record.session == wanted["session"]:
            image = bytearray(images[1])
            image[len(image) // 2] ^= 1
            frames[index] = record, (images[0], bytes(image), *images[2:])
    report = subject.replay(MemoryRecording(subject.recording.passes, frames))
    first = report.first
    assert first is not None and not report.agrees
    assert (first.what, first.session, first.epoch, first.seq, first.number) == ("pixels", *wanted.values(), number)
    assert report.not_comparable[pass_replay.OTHER_PIXELS] >= 1
    assert report.answers == report.equal >= 10, "others, and later epochs, are exact"


def test_another_seed_is_seen_in_the_first_answer(subject, monkeypatch):
    policy = subject.built.engine.policy
    monkeypatch.setattr(policy, "_settings", policy._settings.model_copy(update={"noise_seed": 4}))
    report = subject.replay()
    for first in (report.first, report.first_action):
        assert first is not None
        assert (first.number, first.session, first.seq) == subject.first_answer
    assert report.first_action is not None and report.first_action.size and report.first_action.row is not None
    assert not report.agrees and report.equal == 0 and report.largest_part > 0


def test_a_weight_in_its_last_bit_is_seen_in_the_first_answer(subject):
    weight = subject.built.engine.policy.network._out._bias
    before = weight.clone()
    weight[0] = torch.nextafter(weight[0], weight[0] + 1)
    try:
        report = subject.replay()
    finally:
        weight.copy_(before)
    assert report.first is not None and not report.agrees
    assert (report.first.number, report.first.session, report.first.seq) == subject.first_answer


def test_a_value_in_its_last_bit_is_seen(subject):
    answers = [each for record in subject.recording.kinds("commit") for each in record.get("answers", ())]
    wanted = answers[7]
    value = math.nextafter(wanted["values"][9], math.inf)

    def change(record: dict[str, Any]) -> dict[str, Any]:
        for each in record.get("answers", ()):
            if each == wanted:
                each["values"][9] = value
        return record

    report = subject.replay(subject.recording.changed(change))
    first = report.first
    assert first is not None and report.differences == 1 and report.equal == report.answers - 1
    assert (first.what, first.session, first.seq, first.row, first.dimension) == (
        "answer",
        wanted["session"],
        wanted["seq"],
        1,
        "z",
    )
    assert first.size is not None and 0 < first.size < 1e-12
    assert report.equal_actions == report.actions - 1


@pytest.mark.parametrize(
    ("kind", "instead"),
    [("frame", None), ("pass", {"kind": "pass", "planned": {}}), ("commit", None), ("opened", None), ("seen", {})],
    ids=["frame", "unreadable pass", "commit", "opened", "unreadable seen"],
)
def test_after_a_lost_record_it_is_exact_again_from_the_next_epochs(subject, kind, instead):
    of_kind = subject.recording.kinds(kind)
    lost = of_kind[len(of_kind) // 3]
    report = subject.replay(subject.recording.changed(lambda record: instead if record == lost else record))
    assert report.lost == 1 and report.agrees, report.lines()
    skipped = sum(report.not_comparable.values())
    assert skipped and report.answers >= 5 and report.answers == report.equal
    every = sum(len(record.get("answers", ())) for record in subject.recording.kinds("commit"))
    assert every - 2 <= report.answers + skipped <= every, "those of a lost record aside"


def test_frames_without_pixels_do_not_count_until_the_next_epoch(subject):
    frames = list(subject.recording.frames)
    index = [place for place, (record, _) in enumerate(frames) if isinstance(record, RecordedObservation)][6]
    frames[index] = frames[index][0], ()
    report = subject.replay(MemoryRecording(subject.recording.passes, frames))
    assert report.agrees and set(report.not_comparable) == {pass_replay.NO_PIXELS}


def test_another_machine_is_compared_by_tolerance(subject):
    def elsewhere(record: dict[str, Any]) -> dict[str, Any]:
        if record["kind"] == "engine":
            record["facts"] |= {"threads": 7, "cpu_flags": ["avx9"]}
            record["facts"]["libraries"]["torch"] = "1.0"
        for each in record.get("answers", ()):
            each["values"] = [value + 1e-6 for value in each["values"]]
        return record

    report = subject.replay(subject.recording.changed(elsewhere))
    assert not report.exact and report.agrees and report.equal == 0
    assert {each.name for each in report.machine} == {"threads", "cpu_flags", "libraries.torch"}
    assert report.largest is not None and report.largest.size == pytest.approx(1e-6)
    assert any("threads: 1; recorded 7" in line for line in report.lines())


@pytest.mark.parametrize(
    "facts, said",
    [
        ({"fingerprint": "f" * 64}, rf"{'f' * 64}; .* has [0-9a-f]{{64}}"),
        ({"version": "0.0.1"}, rf"0\.0\.1, and this is {__version__}"),
        ({"version": "0.0.1", "libraries": 5}, rf"0\.0\.1, and this is {__version__}"),
        ({"config": '{"model": 3}'}, "damaged"),
    ],
)
def test_another_model_or_version_is_rejected(subject, facts, said):
    def elsewhere(record: dict[str, Any]) -> dict[str, Any]:
        if record["kind"] == "engine":
            record["facts"] |= facts
        return record

    with pytest.raises(FailedPrecondition, match=said):
        replay_exactly(subject.recording.changed(elsewhere))


def test_a_recording_without_passes_or_pixels_is_rejected(subject):
    with pytest.raises(FailedPrecondition, match="has no passes"):
        replay_exactly(MemoryRecording([], subject.recording.frames))
    small = MemoryRecording(subject.recording.passes, subject.recording.frames, {"cameras": "thumbnails"})
    with pytest.raises(FailedPrecondition, match="thumbnails"):
        replay_exactly(small)


def test_tokens_of_a_changed_weight_are_seen():
    script = RobotScript(config=DEMO, pace=Pace(0, Speculation()), robots=1, answers=8, lost_workers=0)
    recording, built = ScriptedRun(script).run(), ready_engine(DEMO)
    with torch.no_grad():
        built.engine.policy.decoder._norm.mul_(-1)
    report = replay_on(built, DEMO, recording)
    assert not report.agrees and report.first is not None
    assert (report.first.what, report.first.dimension, report.first.number) == ("outcome", "token", 0)


class ReachedMark:
    """A mark on a device that is always done (engine.executor.Stamp)."""

    recorded_ns = 0
    reached = True

    def wait(self) -> None: ...

    def since_ns(self, earlier: object) -> int:
        return 1


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, a pass is launched before the one before it is collected."""
    monkeypatch.setattr(executor.Executor, "_launch_ahead", lambda _: 1)
    monkeypatch.setattr(executor.Executor, "stamp", lambda _: ReachedMark())


def test_passes_launched_ahead_are_replayed_in_their_order(ahead):
    run = ScriptedRun(RobotScript(config=DEMO, pace=Pace(7), robots=2, answers=8, lost_workers=0))
    report = replay_exactly(run.run())
    assert report.agrees and report.answers == run.answers, report.lines()
    assert ("pass", "pass") in pairwise(each["kind"] for each in run.recording.kinds("pass", "commit"))


@pytest.mark.night
def test_whole_passes_that_are_replayed_as_graphs(ahead, monkeypatch):
    monkeypatch.setattr(build, "choose_graphs", lambda *_: True)
    monkeypatch.setattr(executor, "CudaRecord", lambda _: recorded_graphs.record)
    config = ServiceConfig(model="demo-flow", device="cpu", max_sessions=1, max_prompt_tokens=16)
    run = ScriptedRun(RobotScript(config=config, pace=Pace(1), answers=8, lost_workers=0))
    report = replay_exactly(run.run())
    assert report.agrees and report.answers == run.answers, report.lines()
    planned = [each for each in run.recording.kinds("pass") if each.get("planned")]
    assert all("whole=True" in each["ran"] for each in planned)

    def in_another_shape(record: dict[str, Any]) -> dict[str, Any]:
        return record | {"ran": "other"} if record.get("planned") else record

    found = replay_exactly(run.recording.changed(in_another_shape)).first
    assert found is not None and found.what == "shape" and found.number == 0
