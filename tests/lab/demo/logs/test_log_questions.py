"""Questions about logs."""

import random
from collections import Counter

import pytest

from edgeflow.lab.demo.chat.logs.held_out import EvidencePlace, draw_question, held_out_questions
from edgeflow.lab.demo.chat.logs.questions import KINDS, ask
from edgeflow.lab.demo.chat.logs.robot_log import LogLine, RobotLog

LOG = RobotLog(
    (
        LogLine(10, "none", "nothing", "left"),
        LogLine(11, "motor", "cube", "left"),
        LogLine(13, "motor", "cube", "left"),
        LogLine(14, "link", "ring", "left"),
        LogLine(16, "motor", "cube", "home"),
        LogLine(17, "none", "nothing", "left"),
    )
)
WHOLE = range(6)


def answers(kind, region=WHOLE, log=LOG):
    asked = [ask(log, kind, region, random.Random(seed)) for seed in range(1000)]
    return {(each.text, each.answer): each.lines for each in asked if each}


@pytest.mark.parametrize(
    ("kind", "question", "answer", "lines"),
    [
        ("ever fault", "Was the fault ever motor?", "Yes.", (1, 2, 4)),
        ("ever fault", "Do you see the fault camera?", "No.", ()),
        ("ever held", "Was it holding the cube?", "Yes.", (1, 2, 4)),
        ("ever held", "Do you see it holding the plate?", "No.", ()),
        ("most fault", "Which fault was there most often?", "The fault was motor.", (1, 2, 4)),
        ("most held", "What was it holding most often?", "The object was cube.", (1, 2, 4)),
        ("most side", "Where was it most often?", "The side was left.", (0, 1, 2, 3, 5)),
        ("held at fault", "What was it holding at the fault link?", "It says link ring.", (3,)),
    ],
)
def test_answers_are_right(kind, question, answer, lines):
    assert answers(kind)[question, answer] == lines


def test_evidence_lies_in_the_region():
    region = range(3, 6)
    assert answers("held at fault", region) and not answers("held at fault", range(3))
    assert answers("most held") and not answers("most held", region)
    assert "Yes." not in {answer for _, answer in answers("ever held", region)}


def test_a_narrow_majority_is_not_asked_about():
    entries = tuple(LogLine(time, fault, "nothing", "left") for time, fault in enumerate(["motor"] * 4 + ["link"] * 4))
    assert not answers("most fault", range(8), RobotLog(entries))
    wide = tuple(LogLine(time, fault, "nothing", "left") for time, fault in enumerate(["motor"] * 4 + ["link"] * 3))
    assert answers("most fault", range(7), RobotLog(wide))


def test_yes_and_no_are_balanced_and_the_other_answers_are_spread():
    given = {kind: Counter() for kind in KINDS}
    rng = random.Random(0)
    for _ in range(400):
        for kind in KINDS:
            _, asked = draw_question(rng, kind, 30, range(30))
            given[kind][asked.answer] += 1
    for kind in ("ever fault", "ever held"):
        assert 150 < given[kind]["Yes."] < 250
    for kind in set(KINDS) - {"ever fault", "ever held"}:
        assert max(given[kind].values()) < 150, (kind, given[kind])


def test_held_out_questions_go_through_kinds_and_places():
    questions = list(held_out_questions(48, "0", 512))
    assert Counter(question.asked.kind for question in questions) == dict.fromkeys(KINDS, 8)
    assert Counter(question.place for question in questions) == dict.fromkeys(EvidencePlace, 12)
    for question in questions:
        region = question.place.region(len(question.log.entries))
        assert all(line in region for line in question.asked.lines)
        assert question.messages()[0]["content"].endswith(question.asked.text)
    assert questions == list(held_out_questions(48, "0", 512)) != list(held_out_questions(64, "1", 512))


def test_thirds_cover_a_log():
    for lines in (7, 30, 200):
        thirds = [
            line
            for place in (EvidencePlace.START, EvidencePlace.MIDDLE, EvidencePlace.END)
            for line in place.region(lines)
        ]
        assert thirds == list(range(lines)) == list(EvidencePlace.ANYWHERE.region(lines))
