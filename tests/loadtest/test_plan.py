"""Schedules, durations, options and frames."""

from __future__ import annotations

from itertools import islice, pairwise
from random import Random

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.robots.frames import frames_for
from edgeflow_client.loadtest.robots.pacing import SECOND_NS, instants
from edgeflow_client.loadtest.robots.plan import (
    Bursts,
    Closed,
    Fixed,
    LoadPlan,
    Ramp,
    parse_cameras,
    parse_duration,
    parse_size,
    parse_state,
    pattern_of,
    period_s_of,
)
from edgeflow_client.loadtest.robots.posture import Posture
from edgeflow_client.types import CameraSpec, ImageFormat, StateSpec
from tests.loadtest.conftest import CAMERA, SESSION


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


def test_one_pattern_at_a_time():
    assert pattern_of(window=3) == Closed(3)
    assert pattern_of(rate_hz=20.0) == Fixed(20.0)
    assert pattern_of(burst=5, burst_period_s=0.5) == Bursts(5, 0.5)
    assert pattern_of(ramp="5:60", ramp_step_s=2.0) == Ramp(5.0, 60.0, 2.0)
    for asked in ({"window": 2, "rate_hz": 20.0}, {"rate_hz": 20.0, "burst": 5}, {"burst": 5, "ramp": "5:60"}):
        with pytest.raises(ConfigError, match="cannot be combined with another pattern"):
            pattern_of(**asked)
    for ramp in ("5", "60:5", "a:b", "0:5", "1:2:3", "nan:5"):
        with pytest.raises(ConfigError, match="FIRST:LAST"):
            pattern_of(ramp=ramp)
    with pytest.raises(ConfigError, match="burst-period"):
        pattern_of(burst=5, burst_period_s=0.0)


def test_the_declared_period_is_that_of_the_rate():
    assert [period_s_of(pattern) for pattern in (Fixed(20.0), Bursts(4, 1.0), Closed(), Ramp(1, 2))] == [
        *(0.05, 0.25, 0.05, 0.05)
    ]


def test_sizes_and_counts_are_checked():
    assert parse_size("640x480") == (640, 480)
    for text in ("640", "0x3", "640x480x3", "-1x4", "axb"):
        with pytest.raises(ConfigError, match="camera"):
            parse_size(text)
    for changes in ({"robots": 0}, {"robots": 999}, {"robots": 2, "connections": 3}, {"duration_s": 0.0}):
        with pytest.raises(ConfigError):
            LoadPlan(address="localhost:1", session=SESSION, pattern=Closed(), **changes)


def test_synthetic_frames_differ_and_repeat_with_their_seed():
    frames = frames_for((CAMERA,), None, 8, seed=3)
    assert len(set(frames)) == 8 and frames == frames_for((CAMERA,), None, 8, seed=3)
    assert not set(frames) & set(frames_for((CAMERA,), None, 8, seed=4))
    for (data,) in frames:
        assert simplejpeg.decode_jpeg(data).shape == (24, 32, 3)


def test_several_cameras_have_pictures_of_their_own_and_the_first_those_of_one_alone():
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


def test_a_folder_without_good_images_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no"):
        frames_for((CAMERA,), tmp_path, 4, seed=0)
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8 not an image")
    with pytest.raises(ConfigError, match=r"broken\.jpg"):
        frames_for((CAMERA,), tmp_path, 4, seed=0)
