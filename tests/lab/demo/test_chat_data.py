"""Generated conversations and the tokenizer."""

import random
import re

import pytest

from edgeflow.lab.demo.chat.batches import ASIDE, Batcher
from edgeflow.lab.demo.chat.dialogs import Dialog, DialogSource, DialogTurn, numbers
from edgeflow.lab.demo.chat.questions import TOPICS
from edgeflow.lab.demo.chat.robot_state import RobotState, SceneObject, StateSource, held_out_number
from edgeflow.lab.demo.chat.small_talk import ABOUT_ITSELF, REFUSAL
from edgeflow.lab.demo.chat.tokenizer import SPECIAL, VOCAB, chat_text, train_tokenizer

STATE = RobotState(
    pose=(12, -3, 21),
    gripper="closed",
    holding="red cube",
    things=(SceneObject("red", "cube", (10, -5, 2), 19), SceneObject("blue", "ball", (-14, 8, 12), 30)),
    task="lift the red cube",
    mode="pipelined",
    fps=20,
    age_ms=40,
    fault="",
    silent=frozenset({"mode"}),
)
REPORT = (
    "Robot state: arm x+12 y-03 z21; gripper closed; holding red cube; objects 2; red cube x+10 y-05 z02 d19; "
    "blue ball x-14 y+08 z12 d30; task lift the red cube; fps 20; age 040 ms; faults none"
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(0)


def drawn(count, **options):
    source = DialogSource(3, **options)
    return [source.draw(6) for _ in range(count)]


def answers(topic, state=STATE, draws=200):
    """The questions of a topic about a state, with the answers."""
    source = StateSource(random.Random(0), held_out=False)
    found = [TOPICS[topic].find(state, source) for _ in range(draws)]
    return {each.subject: each.answer for each in found if each}


def test_a_report_has_one_format():
    assert STATE.report() == REPORT


@pytest.mark.parametrize(
    ("topic", "subject", "answer"),
    [
        ("where", "blue ball", "The blue ball is at x-14 y+08 z12."),
        ("distance", "red cube", "The red cube is 19 cm away."),
        ("side", "blue ball", "The blue ball is at y+08: left."),
        ("list", "", "The red cube, the blue ball."),
        ("holds", "red cube", "Yes, it holds the red cube."),
        ("gripper is", "open", "No, the gripper is closed."),
        ("fps", "", "The fps is 20."),
        ("age", "", "The age is 040 ms."),
        ("mode", "", "The state does not give the mode."),
        ("faults", "", "No faults."),
        ("status", "", "Gripper closed, holding red cube, 2 objects, fps 20, faults none."),
    ],
)
def test_answers_are_right(topic, subject, answer):
    assert answers(topic)[subject] == answer


def test_a_colour_names_one_object():
    source = StateSource(random.Random(1), held_out=False)
    for _ in range(200):
        colours = [thing.colour for thing in source.draw().things]
        assert len(set(colours)) == len(colours)


def test_the_same_seed_gives_the_same_conversations():
    assert drawn(20) == drawn(20)
    assert drawn(20) != drawn(20, held_out=True)


def plain(turn):
    """The question without its lead, capitals and last sign."""
    text = turn.question.lower().rstrip(".?!")
    return re.sub(r"^(please|one question|next|now tell me|robot): ", "", text)


def test_held_out_numbers_are_not_in_training():
    told = {number for dialog in drawn(1000) for number in numbers(dialog.opening + dialog.report)}
    assert told and not any(map(held_out_number, told))
    asked = [turn for dialog in drawn(100, held_out=True) for turn in dialog.turns if turn.topic in TOPICS]
    answered = [numbers(turn.answer) for turn in asked if numbers(turn.answer)]
    assert answered and all(any(map(held_out_number, answer)) for answer in answered)


def test_held_out_combinations_are_not_in_training():
    training = {plain(turn) for dialog in drawn(1000) for turn in dialog.turns if turn.topic != "talk"}
    with_subject = {"where", "distance", "height", "side", "exists", "holds"}
    asked = [turn for dialog in drawn(100, held_out=True) for turn in dialog.turns if turn.topic in with_subject]
    assert len(asked) > 50
    assert not {plain(turn) for turn in asked if not turn.follow_up} & training


def test_follow_ups_repeat_the_topic_before():
    pairs = [pair for dialog in drawn(300) for pair in zip(dialog.turns, dialog.turns[1:], strict=False)]
    follow_ups = [(before, turn) for before, turn in pairs if turn.follow_up]
    assert len(follow_ups) > 10
    assert all(before.topic == turn.topic for before, turn in follow_ups)


def test_small_talk_gets_the_models_description_of_itself():
    said = {turn.answer for dialog in drawn(300) for turn in dialog.turns if turn.topic == "talk"}
    assert said == {*ABOUT_ITSELF, REFUSAL}


@pytest.mark.parametrize("text", [REPORT, "naïve 你好 🤖\n\ttabs  and   spaces", "", "\x00\x7f", "What are you?"])
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_digits_are_tokens_and_the_vocabulary_is_bounded(tokenizer):
    assert tokenizer.get_vocab_size() <= VOCAB
    assert tokenizer.encode("x+12 y-03 z07").tokens == ["x", "+", "1", "2", "Ġy", "-", "0", "3", "Ġz", "0", "7"]
    assert [tokenizer.token_to_id(sign) for sign in SPECIAL] == [0, 1, 2]


def test_only_answers_are_learned(tokenizer):
    turns = (
        DialogTurn("Where is the arm?", "The arm is at x+12 y-03 z21.", "pose"),
        DialogTurn("Thanks", "You are welcome.", "talk"),
    )
    dialog = Dialog("", REPORT, turns)
    batch = Batcher(tokenizer).pack([dialog])
    learned = batch.targets[0][batch.targets[0] != ASIDE].tolist()
    assert tokenizer.decode(learned, skip_special_tokens=False) == "".join(f"{turn.answer}<|im_end|>" for turn in turns)
    assert tokenizer.decode(batch.ids[0].tolist(), skip_special_tokens=False) == chat_text(dialog.messages(2))
