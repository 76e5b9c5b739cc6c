"""Which pace a speculative session has, the mode that it amounts to, and how a pace is told to people."""

from __future__ import annotations

import pytest

from edgeflow.contract import PROMPT, Pace, Speculation, Stage, StageProgram
from edgeflow.scheduler.pace import auto_pace, pace_of, pace_text, paces_of, served_mode
from edgeflow_client.types import Mode

DENOISING = StageProgram((Stage(rows=PROMPT), Stage(rows=5, repeats=2, advances=False)))
EXPORTED = StageProgram((Stage(rows=PROMPT), Stage(rows=1, repeats=2, group=1)))


def test_speculative_is_serial_where_an_action_has_one_token():
    drafting = pace_of(Mode.SPECULATIVE, 7, speculation=Speculation(1, 2))
    assert drafting == Pace(0, Speculation(1, 2))
    assert served_mode(Mode.SPECULATIVE, drafting, 7) is Mode.SPECULATIVE
    single = pace_of(Mode.SPECULATIVE, 1, speculation=Speculation(1, 1))
    assert single == Pace(1)
    assert served_mode(Mode.SPECULATIVE, single, 1) is Mode.SERIAL
    assert [served_mode(mode, Pace(1), 7) for mode in (Mode.SERIAL, Mode.DEPTH)] == [Mode.SERIAL, Mode.DEPTH]


@pytest.mark.parametrize(
    ("pace", "stages", "mode"),
    [
        (Pace(0, Speculation()), 7, Mode.SPECULATIVE),
        (Pace(1), 7, Mode.SERIAL),
        (Pace(3), 7, Mode.DEPTH),
        (Pace(7), 7, Mode.PIPELINED),
        (Pace(1), 1, Mode.SERIAL),
    ],
)
def test_auto_reports_the_mode_of_the_chosen_pace(pace: Pace, stages: int, mode: Mode):
    assert served_mode(Mode.AUTO, pace, stages) is mode


@pytest.mark.parametrize(
    ("program", "without_limit", "names"),
    [
        (StageProgram.tokens(3), Pace(0, Speculation()), ["serial", "depth 2", "pipelined", "speculative"]),
        (StageProgram.tokens(1), Pace(1), ["serial"]),
        (DENOISING, Pace(1), ["serial", "depth 2", "pipelined"]),
        (EXPORTED, Pace(1), ["serial", "depth 2", "pipelined"]),
    ],
)
def test_auto_drafts_where_tokens_can_be_drafted(program: StageProgram, without_limit: Pace, names: list[str]):
    assert auto_pace(program) == without_limit
    assert list(paces_of(program)) == names


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
