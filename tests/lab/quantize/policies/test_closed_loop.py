"""Frames recorded on the spot."""

from __future__ import annotations

from edgeflow.lab.quantize.policies.closed_loop import FIRST_EPISODE, HELD_OUT_FRAMES, record_frames
from edgeflow.model_paths import EMBEDDED_POLICY


def test_frames_are_those_that_the_policy_answers_in_different_episodes():
    steps = []
    found = record_frames(
        EMBEDDED_POLICY, 3, lambda step, done, count: steps.append((step, done, count)), shown=12, held_out=2
    )
    assert [each.held_out for each in found] == [False] * 12 + [True] * 2
    assert {each.episode for each in found[:12]}.isdisjoint({each.episode for each in found[12:]})
    (image,) = found[0].observation.images.values()
    assert (image.height, image.width, len(image.data)) == (96, 96, 96 * 96 * 3)
    pixels = {bytes(image.data) for each in found for image in each.observation.images.values()}
    assert len(pixels) > len(found) / 2  # a buffer that is drawn again and again gives one; an arm at rest, equal ones
    assert steps[-1] == ("held-out frames", 2, 2) and ("frames", 12, 12) in steps


def test_no_seed_reaches_the_held_out_episodes():
    """Held-out episodes from 3,000,000 on are those of seed 1000."""
    found = record_frames(EMBEDDED_POLICY, 1000, lambda *_: None, shown=1, held_out=1)
    (shown,), (held_out,) = ([each.episode for each in found if each.held_out is kind] for kind in (False, True))
    assert held_out + HELD_OUT_FRAMES <= FIRST_EPISODE <= shown  # an episode gives a frame at least
