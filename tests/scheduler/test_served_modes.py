"""Which pace a speculative session has, the mode that it amounts to, and how a pace is told to people."""

from __future__ import annotations

import pytest

from edgeflow.scheduler.pace import pace_of, pace_text, served_mode
from edgeflow.types import Mode, Pace, Speculation


def test_speculative_is_serial_where_an_action_has_one_token():
    drafting = pace_of(Mode.SPECULATIVE, 7, speculation=Speculation(1, 2))
    assert drafting == Pace(0, Speculation(1, 2))
    assert served_mode(Mode.SPECULATIVE, drafting) is Mode.SPECULATIVE
    single = pace_of(Mode.SPECULATIVE, 1, speculation=Speculation(1, 1))
    assert single == Pace(1)
    assert served_mode(Mode.SPECULATIVE, single) is Mode.SERIAL
    assert [served_mode(mode, Pace(1)) for mode in (Mode.SERIAL, Mode.AUTO)] == [Mode.SERIAL, Mode.AUTO]


@pytest.mark.parametrize(("asked", "most"), [(0, 7), (1, 1), (7, 7)])
def test_frames_leave_after_k_passes_at_the_latest(asked: int, most: int):
    assert Speculation(max_passes=asked).most_passes(7) == most


@pytest.mark.parametrize(
    ("pace", "text"),
    [
        (Pace(1), "serial"),
        (Pace(3), "depth 3"),
        (Pace(0, Speculation()), "speculative"),
        (Pace(0, Speculation(1)), "speculative, tolerance 1 bin"),
        (Pace(0, Speculation(2, 1)), "speculative, tolerance 2 bins, at most 1 pass"),
        (Pace(0, Speculation(0, 4)), "speculative, at most 4 passes"),
    ],
)
def test_a_pace_has_a_text_for_people(pace: Pace, text: str):
    assert pace_text(pace) == text
