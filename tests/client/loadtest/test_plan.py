"""Schedules, durations, options and frames."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from edgeflow_client.connection.wire import SessionSettings
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.robots.frames import frames_for
from edgeflow_client.loadtest.robots.plan import (
    SECOND_NS,
    Bursts,
    ClosedLoopPlan,
    Fixed,
    LoadPlan,
    Ramp,
    instants,
    parse_cameras,
    parse_duration,
    parse_size,
    parse_state,
    period_s_of,
    plan_keys,
    read_plan,
)
from edgeflow_client.loadtest.robots.robot import Posture
from edgeflow_client.types import CameraSpec, Execution, ImageFormat, Mode, StateSpec
from tests.client.loadtest.conftest import CAMERA


@given(st.floats(0.1, 10_000), st.integers(0, 3_000))
def test_a_fixed_rate_does_not_drift(rate_hz, index):
    (instant,) = islice(instants(Fixed(rate_hz)), index, index + 1)
    assert abs(instant - index * SECOND_NS / rate_hz) <= 1


def test_bursts_come_together():
    due = list(islice(instants(Bursts(3, 0.5)), 7))
    assert due == [0, 0, 0, SECOND_NS // 2, SECOND_NS // 2, SECOND_NS // 2, SECOND_NS]


def test_a_ramp_has_the_rate_of_each_step_and_ends():
    pattern = Ramp(10, 20, step_s=2, factor=1.25)
    assert pattern.rates_hz == pytest.approx([10, 12.5, 15.625, 19.53125])
    due = np.array(list(instants(pattern)))
    assert np.all(np.diff(due) > 0) and due[-1] < 8 * SECOND_NS
    counts = np.bincount(due // (2 * SECOND_NS))
    assert counts.tolist() == pytest.approx([2 * rate for rate in pattern.rates_hz], abs=1)
    assert Ramp(10, 10).rates_hz == [10]


@pytest.mark.parametrize(
    ("text", "seconds"), [("80ms", 0.08), ("0.1s", 0.1), (".5s", 0.5), ("2m", 120), ("1h", 3600), ("250us", 2.5e-4)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["80", "", "ms", "-1s", "1 s", "1e3s", "nan", "1d"])
def test_a_duration_needs_its_unit(text):
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


def plan_of(**sections: dict[str, object]) -> LoadPlan:
    return read_plan({"": sections.pop("own", {}), **sections}, "localhost:1", (CAMERA,))


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({}, ClosedLoopPlan(1)),
        ({"window": "3"}, ClosedLoopPlan(3)),
        ({"rate_hz": 20.0}, Fixed(20.0)),
        ({"frames": "5"}, Bursts(5, 1.0)),
        ({"frames": "5", "period_s": "500ms"}, Bursts(5, 0.5)),
        ({"first_hz": "5", "last_hz": "60", "step_s": "2"}, Ramp(5.0, 60.0, 2.0)),
    ],
)
def test_the_settings_of_a_pattern_say_which_it_is(settings, pattern):
    assert plan_of(pattern=settings).pattern == pattern


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"window": "2", "rate_hz": 20.0}, "window, rate_hz are not of one pattern; known: window | rate_hz | frames"),
        ({"burst": "5"}, "burst are not of one pattern"),
        ({"window": "0"}, r"pattern\.window: 0 is outside 1 to 1e\+09"),
        ({"rate_hz": 1e5}, r"pattern\.rate_hz: 100000 is outside 0\.1 to 10000"),
        ({"rate_hz": "nan"}, r"pattern\.rate_hz: nan is outside"),
        ({"rate_hz": "fast"}, r"pattern\.rate_hz: 'fast' is not a number"),
        ({"first_hz": "5"}, r"pattern\.last_hz: is missing"),
        ({"step_s": "5"}, r"pattern\.first_hz: is missing"),
        ({"first_hz": "60", "last_hz": "5"}, r"pattern\.last_hz: 5 is below first_hz, 60"),
        ({"first_hz": "5", "last_hz": "6", "factor": "1"}, r"pattern\.factor: 1 is outside"),
        ({"frames": "5", "period_s": "0s"}, r"pattern\.period_s: 0 is outside"),
    ],
)
def test_a_wrong_pattern_is_an_error_that_names_the_key(settings, words):
    with pytest.raises(ConfigError, match=words):
        plan_of(pattern=settings)


def test_settings_are_read_by_the_type_of_their_field():
    own = {"robots": 4, "warm_up_s": "500ms", "grace_s": "3", "count": "25", "frames": "pictures", "seed": "7"}
    session = {"mode": "depth", "depth": "3", "max_action_age_s": "80ms", "model": "demo", "execution": "rest"}
    plan = plan_of(own=own, session=session, pattern={"rate_hz": 25.0})
    assert (plan.robots, plan.connections, plan.warm_up_s, plan.grace_s, plan.count) == (4, 4, 0.5, 3.0, 25)
    assert (plan.frames, plan.seed, plan.instructions) == (Path("pictures"), 7, ("grasp the red handle",))
    agreed = SessionSettings(
        cameras=(CAMERA,),
        control_period_s=0.04,
        mode=Mode.DEPTH,
        depth=3,
        max_action_age_s=0.08,
        model="demo",
        execution=Execution.REST,
    )
    assert plan.session == agreed
    assert plan_of(own={"instructions": "lift it"}).instructions == ("lift it",)
    assert plan_of(own={"instructions": '["a", "b"]'}).instructions == ("a", "b")
    assert plan_of(own={"robots": "3", "connections": "2", "count": "null"}).connections == 2


@pytest.mark.parametrize(
    ("section", "settings", "words"),
    [
        ("own", {"robot": "4"}, "robot: unknown key; known: .*robots, connections"),
        ("own", {"address": "elsewhere:1"}, "address: unknown key"),
        ("own", {"robots": "999"}, "robots: 999 is outside 1 to 256"),
        ("own", {"robots": "two"}, "robots: 'two' is not an integer"),
        ("own", {"robots": "2", "connections": "3"}, "connections: 3 is more than there are robots, 2"),
        ("own", {"duration_s": "0s"}, "duration_s: 0 is outside"),
        ("own", {"warm_up_s": "1 day"}, "warm_up_s: '1 day' is not a time such as 80ms or 2s"),
        ("own", {"instructions": "[]"}, "instructions: '\\[\\]' is not a text, or a list of texts in JSON"),
        ("own", {"instructions": "[1]"}, "instructions: "),
        ("session", {"cameras": "top:1x1"}, r"session\.cameras: unknown key"),
        (
            "session",
            {"mode": "fast"},
            r"session\.mode: 'fast' is not one of serial, pipelined, depth, speculative, auto",
        ),
        ("session", {"execution": "rtc"}, r"session\.execution: 'rtc' is not one of auto, continue, fresh, rest, slow"),
        ("session", {"depth": "-1"}, r"session\.depth: -1 is outside 0 to"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_the_key(section, settings, words):
    with pytest.raises(ConfigError, match=words):
        plan_of(**{section: settings})


def test_the_keys_of_a_plan_are_those_that_it_reads():
    keys = plan_keys()
    assert {"seed", "robots", "session.tolerance_bins", "pattern.window", "pattern.first_hz"} <= set(keys)
    assert not {"address", "session", "pattern", "session.cameras"} & set(keys) and len(keys) == len(set(keys))


def test_the_declared_period_is_that_of_the_rate():
    assert [period_s_of(pattern) for pattern in (Fixed(20.0), Bursts(4, 1.0), ClosedLoopPlan(), Ramp(1, 2))] == [
        *(0.05, 0.25, 0.05, 0.05)
    ]


def test_sizes_are_checked():
    assert parse_size("640x480") == (640, 480)
    for text in ("640", "0x3", "640x480x3", "-1x4", "axb"):
        with pytest.raises(ConfigError, match="camera"):
            parse_size(text)


def test_synthetic_frames_differ_and_repeat_with_their_seed():
    frames = frames_for((CAMERA,), None, 8, seed=3)
    assert len(set(frames)) == 8 and frames == frames_for((CAMERA,), None, 8, seed=3)
    assert not set(frames) & set(frames_for((CAMERA,), None, 8, seed=4))
    for (data,) in frames:
        assert simplejpeg.decode_jpeg(data).shape == (24, 32, 3)


def test_several_cameras_have_their_own_pictures_and_the_first_those_of_a_single_one():
    two = (CAMERA, CameraSpec("wrist", 16, 8, ImageFormat.JPEG))
    frames = frames_for(two, None, 4, seed=3)
    assert [first for first, _ in frames] == [alone for (alone,) in frames_for((CAMERA,), None, 4, seed=3)]
    assert [simplejpeg.decode_jpeg(second).shape for _, second in frames] == [(8, 16, 3)] * 4
    same = frames_for((CAMERA, CAMERA), None, 4, seed=3)
    assert all(first != second for first, second in same)


def test_cameras_and_state_are_read():
    assert parse_cameras("top:640x480, observation.images.wrist:320x240", ImageFormat.RGB8) == (
        CameraSpec("top", 640, 480, ImageFormat.RGB8),
        CameraSpec("observation.images.wrist", 320, 240, ImageFormat.RGB8),
    )
    assert parse_state("observation.state:6,gripper:1") == (
        StateSpec(name="observation.state", size=6),
        StateSpec(name="gripper", size=1),
    )
    assert parse_state("") == ()
    for text in ("top", ":1x1", "top:3", "top:640x480,"):
        with pytest.raises(ConfigError, match="camera"):
            parse_cameras(text, ImageFormat.JPEG)
    for text in ("state", "state:0", "state:-1", "state:x", ":3", "a:1,"):
        with pytest.raises(ConfigError, match="state"):
            parse_state(text)


def test_a_posture_changes_slowly_within_bounds_and_repeats_with_its_seed():
    one, same, other = (Posture(6, Random(seed)) for seed in (1, 1, 2))
    seconds = [index / 50 for index in range(2000)]
    rows = np.array([one.at(round(second * 1e9)) for second in seconds])
    assert np.abs(rows).max() <= 1.0 and np.abs(np.diff(rows, axis=0)).max() < 0.05
    assert np.ptp(rows, axis=0).min() > 1.9
    assert one.at(7) == same.at(7) != other.at(7)
    assert Posture(0, Random(0)).at(5) == []


def test_raw_frames_have_the_cameras_size():
    raw = frames_for((CameraSpec("camera", 20, 10, ImageFormat.RGB8),), None, 3, seed=0)
    assert [len(data) for (data,) in raw] == [600] * 3


def test_recorded_frames_keep_their_order_and_are_resized(tmp_path):
    (tmp_path / "b").mkdir()
    for name, red in (("b/1.png", 200), ("a.jpg", 100), ("c.png", 30)):
        Image.new("RGB", (64, 64), (red, 0, 0)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    frames = frames_for((CameraSpec("camera", 20, 10, ImageFormat.RGB8),), tmp_path, 64, seed=0)
    reds = [int(np.frombuffer(data, np.uint8).reshape(10, 20, 3)[5, 5, 0]) for (data,) in frames]
    assert reds == pytest.approx([100, 200, 30], abs=3)
    assert all(before != after for before, after in pairwise(frames))


def test_a_folder_without_good_images_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match="has no"):
        frames_for((CAMERA,), tmp_path, 4, seed=0)
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8 not an image")
    with pytest.raises(ConfigError, match=r"broken\.jpg"):
        frames_for((CAMERA,), tmp_path, 4, seed=0)
