"""Recorded observations as a calibration asks about them: with their past, and with all delays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from edgeflow.contract import ObservationWindow
from edgeflow.lab.quantize.policies.served import prepared_frames
from tests.policies.flow.tiny import MOST_DELAY_MS, TOP, write_checkpoint
from tests.policies.flow.tiny_policies import loaded, observation
from tests.policies.flow.weights import Tiny

MS = 1_000_000


def test_the_past_of_an_observation_is_of_its_episode(tmp_path: Path):
    policy = loaded(write_checkpoint(tmp_path, Tiny(kind="smolvla", history=2, delay=True)))
    stamps_ms = (1000, 1100, 1200, 1300, 500, 700)  # of two episodes
    seen = [observation(seed, TOP, stamp_ns=at_ms * MS) for seed, at_ms in enumerate(stamps_ms)]
    seen.append(replace(seen[0], instruction="drop it", stamp_ns=900 * MS))
    found = prepared_frames(policy, seen, (0, 3, 4, 5, 6))
    delays = []
    for frame, (older, newer) in zip(found, ((0, 0), (1, 3), (4, 4), (4, 5), (6, 6)), strict=True):
        gap_ns = seen[newer].stamp_ns - seen[older].stamp_ns
        delay_ms = float(frame.state[policy.config.state_inputs - 1] * 2.0 + 0.8) * 1e3  # as the statistics have it
        window = ObservationWindow((policy.prepare(seen[older]), policy.prepare(seen[newer])), (gap_ns,), delay_ms)
        wanted = policy.joined(window)
        np.testing.assert_allclose(frame.state, wanted.state, atol=1e-6)
        assert frame.pixel_values.equal(wanted.pixel_values) and frame.noise.equal(wanted.noise)
        delays.append(delay_ms)
    assert delays[0] == 0.0 and max(delays) > 0.8 * MOST_DELAY_MS and len(set(delays)) == 5
    assert len(prepared_frames(policy, seen)) == len(seen)
