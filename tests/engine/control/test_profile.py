"""Device profiles: the published figures and the waiting."""

from __future__ import annotations

import pytest

from edgeflow.contract import PROMPT, Stage, StageProgram
from edgeflow.engine.control.profile import Pacer, load_profile
from edgeflow.scheduler.plan import FrameRef, Pass, Segment
from edgeflow_client.clock import ManualClock
from edgeflow_client.errors import ConfigError


def planned(stages: list[int]) -> Pass:
    segments = tuple(
        Segment(sequence=FrameRef(0, 1, 9 - stage), slot=stage, generation=1, start=0, length=1, stage=stage)
        for stage in stages
    )
    return Pass(0, segments)


@pytest.mark.parametrize(("name", "serial_s", "packed_s"), [("orin", 0.8030, 0.3131), ("rtx5090", 0.1312, 0.0514)])
def test_published_totals_are_kept(name: str, serial_s: float, packed_s: float):
    profile = load_profile(name)
    assert profile is not None
    assert profile.prefill_ns + 6 * profile.decode_ns == pytest.approx(serial_s * 1e9, rel=1e-6)
    times = profile.times(7)
    assert times.pass_ns(1, 6) == pytest.approx(packed_s * 1e9)
    assert times.pass_ns(0, 1) == times.pass_ns(0, 6) == profile.decode_ns
    assert times.pass_ns(1, 0) == profile.prefill_ns
    assert times.pass_ns(2, 0) == 2 * profile.prefill_ns
    row_s = packed_s / 280
    assert times.pass_ns(1, 6 + 14) == pytest.approx((packed_s + 14 * row_s) * 1e9, rel=1e-6)
    assert times.pass_ns(2, 12 + 14) == pytest.approx((2 * packed_s + 14 * row_s) * 1e9, rel=1e-6)
    assert times.pass_ns(0, 20) == profile.decode_ns


def test_a_denoising_step_alone_is_a_decode_pass_and_its_rows_cost_beside_others():
    profile = load_profile("rtx5090")
    assert profile is not None
    program = StageProgram((Stage(rows=PROMPT), Stage(rows=50, repeats=10, group=1, advances=False)))
    times, step_ns = profile.times_of(program), 50 * (profile.packed_ns // 280)
    assert (times.pass_ns(1, 0), times.pass_ns(0, 1)) == (profile.prefill_ns, profile.decode_ns)
    assert times.pass_ns(1, 3) == profile.prefill_ns + 3 * step_ns
    assert times.pass_ns(1, 14) == profile.prefill_ns + 14 * step_ns, "beyond one robot's pass as within it"
    assert times.pass_ns(0, 5) == profile.decode_ns + 4 * step_ns
    assert profile.times_of(StageProgram.tokens(7)) == profile.times(7)


def test_a_pass_is_held_for_what_is_missing():
    clock = ManualClock()
    profile = load_profile("rtx5090")
    assert profile is not None
    pacer = Pacer(profile.times(7), clock, wait=lambda seconds: clock.advance_ns(round(seconds * 1e9)))
    clock.advance_ns(1000)
    pacer.hold(planned([1]), started_ns=0)
    assert clock.now_ns() == profile.decode_ns
    clock.advance_ns(10 * profile.decode_ns)
    pacer.hold(planned([1]), started_ns=0)
    assert clock.now_ns() == 11 * profile.decode_ns, "a pass that was slower is not held"


def test_measured_profile_file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"name": "mine", "prefill_ms": 3, "decode_ms": 1, "packed_ms": 3.5}')
    profile = load_profile(str(path))
    assert profile is not None and (profile.name, profile.decode_ns) == ("mine", 1_000_000)
    assert profile.times(7).row_ns == 3_500_000 // 280


def test_a_profile_of_another_model_has_its_own_rows(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"name": "mine", "prefill_ms": 3, "decode_ms": 1, "packed_ms": 3.5, "prefill_rows": 50}')
    profile = load_profile(str(path))
    assert profile is not None and profile.times(7).row_ns == 70_000


@pytest.mark.parametrize("rows", ["0", "-3", "2.5", '"many"', "null", "true"])
def test_bad_rows_of_a_prefill_are_named(tmp_path, rows: str):
    path = tmp_path / "mine.json"
    path.write_text(f'{{"name": "mine", "prefill_ms": 3, "decode_ms": 1, "packed_ms": 3.5, "prefill_rows": {rows}}}')
    with pytest.raises(ConfigError, match=r"prefill_rows .*; it is an integer of at least 1"):
        load_profile(str(path))


@pytest.mark.parametrize("time_ms", ["-1", "0", "1e300"])
def test_a_time_that_no_pass_takes_is_rejected(tmp_path, time_ms: str):
    path = tmp_path / "bad.json"
    path.write_text(f'{{"name": "x", "prefill_ms": 3, "decode_ms": {time_ms}, "packed_ms": 3.5}}')
    with pytest.raises(ConfigError, match="every time must be above 0"):
        load_profile(str(path))


@pytest.mark.parametrize(
    "text",
    ['{"name": "x"}', "[]", "not json", "[" * 100_000, '{"prefill_ms": Infinity}'],
    ids=["name only", "list", "no json", "deep", "infinite"],
)
def test_a_bad_profile_file_says_what_it_needs(tmp_path, text: str):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="prefill_ms"):
        load_profile(str(path))


def test_an_unknown_profile_is_rejected():
    with pytest.raises(ConfigError, match="cannot read 'orinn': No such file"):
        load_profile("orinn")


def test_an_unknown_key_is_named(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"name": "mine", "prefill_ms": 3, "decode_ms": 1, "packed_ms": 3.5, "row_ms": 50}')
    with pytest.raises(ConfigError, match="unknown key 'row_ms'"):
        load_profile(str(path))


def test_a_policy_of_one_pass_takes_a_whole_chunk():
    profile = load_profile("orin-smolvla")
    assert profile is not None
    times = profile.times_of(StageProgram((Stage(rows=PROMPT),)))
    assert times.pass_ns(1, 0) == pytest.approx(388e6)
    assert times.pass_ns(2, 0) == pytest.approx(776e6)
