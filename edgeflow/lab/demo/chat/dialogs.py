"""Generates conversations: a state in one of the first messages, then questions with their answers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from edgeflow.lab.demo.chat.questions import TOPICS
from edgeflow.lab.demo.chat.robot_state import MAX_OBJECTS, RobotState, StateSource, held_out_number
from edgeflow.lab.demo.chat.small_talk import NO_STATE, SYSTEMS, SmallTalk, held_out

LEADS: Final = ("", "", "", "", "Please: ", "One question: ", "Next: ", "Now tell me: ", "Robot: ")
WITHOUT_STATE: Final = 0.08  # share of conversations
OFF_TOPIC: Final = 0.08  # share of questions, where there is a state
SLOPPY: Final = 0.15  # share of questions without capitals or without the last punctuation mark


@dataclass(frozen=True, slots=True)
class DialogTurn:
    """One question and its answer."""

    question: str
    answer: str
    topic: str
    """The topic; "talk" for questions that no state answers."""
    follow_up: bool = False
    """True if the question needs the previous turn."""


@dataclass(frozen=True, slots=True)
class Dialog:
    """A conversation."""

    opening: str
    """The system message."""
    report: str
    """Text before the first question; may be ""."""
    turns: tuple[DialogTurn, ...]

    def asked(self, turn: int) -> str:
        """The user's message."""
        question = self.turns[turn].question
        return f"{self.report}\n{question}" if turn == 0 and self.report else question

    def messages(self, turns: int) -> list[dict[str, str]]:
        """The first `turns` turns, answers included, in the form of a chat request."""
        found = [{"role": "system", "content": self.opening}] if self.opening else []
        for index in range(turns):
            found.append({"role": "user", "content": self.asked(index)})
            found.append({"role": "assistant", "content": self.turns[index].answer})
        return found


class DialogSource:
    """Generates conversations; the same seed gives the same ones.

    held_out: False for training. True generates questions that training never shows: each combines a wording and a
    subject that are held out together, and half of the numbers in the states are held out too.

    recite: start by repeating the whole state, the exercise that teaches copying.

    near_misses: share of questions about an object of which only the colour exists, in addition to those that occur by
    chance.
    """

    def __init__(
        self,
        seed: int | str,
        *,
        held_out: bool = False,
        most_objects: int = MAX_OBJECTS,
        recite: bool = False,
        near_misses: float = 0.0,
    ) -> None:
        self._rng = random.Random(seed)
        self._held_out = held_out
        self._most = most_objects
        self._recite = recite
        self._states = StateSource(self._rng, held_out=held_out, near_misses=near_misses)
        self._talk = SmallTalk(self._rng, held_out=held_out)

    def draw(self, turns: int) -> Dialog:
        """A conversation of `turns` questions."""
        if self._rng.random() < WITHOUT_STATE:
            system = self._rng.choice(SYSTEMS) if self._rng.random() < 0.5 else ""
            return Dialog(system, "", tuple(self._stateless() for _ in range(min(turns, 3))))
        state = self._states.draw(self._most)
        asked = [self._question(state, "repeat", TOPICS["repeat"].phrasings)] if self._recite else []
        while len(asked) < turns:
            asked.append(self._turn(state, asked))
        report = state.report()
        if self._rng.random() < 0.5:
            system = self._rng.choice(SYSTEMS) + "\n" if self._rng.random() < 0.2 else ""
            return Dialog(system + report, "", tuple(asked))
        return Dialog(self._rng.choice(SYSTEMS) if self._rng.random() < 0.2 else "", report, tuple(asked))

    def _turn(self, state: RobotState, before: list[DialogTurn]) -> DialogTurn:
        if self._rng.random() < OFF_TOPIC:
            return self._small_talk()
        topic = before[-1].topic if before else ""
        if topic in TOPICS and TOPICS[topic].again and self._rng.random() < 0.3:
            return self._question(state, topic, (TOPICS[topic].again,), follow_up=True)
        name = self._rng.choice(list(TOPICS))
        return self._question(state, name, TOPICS[name].phrasings)

    def _question(
        self, state: RobotState, name: str, phrasings: tuple[str, ...], follow_up: bool = False
    ) -> DialogTurn:
        """A question on the topic, or on another topic if the state does not allow one."""
        for _ in range(20):
            found = TOPICS[name].find(state, self._states)
            if found is None:
                continue
            phrasing, lead = self._rng.choice(phrasings), self._rng.choice(LEADS)
            if held_out(combination(lead, phrasing, found.subject)) == self._held_out and self._fresh(found.answer):
                return DialogTurn(self._worded(lead + phrasing.format(found.subject)), found.answer, name, follow_up)
        return self._turn(state, [])

    def _fresh(self, answer: str) -> bool:
        """True if the answer is suitable: a held-out answer with numbers must have one that training never shows."""
        return not self._held_out or not numbers(answer) or any(map(held_out_number, numbers(answer)))

    def _stateless(self) -> DialogTurn:
        if self._rng.random() < 0.6:
            return self._small_talk()
        name = self._rng.choice(list(TOPICS))
        turn = self._question(self._states.draw(self._most), name, TOPICS[name].phrasings)
        return turn if turn.topic == "talk" else DialogTurn(turn.question, NO_STATE, "no state")

    def _small_talk(self) -> DialogTurn:
        question, answer = self._talk.draw()
        return DialogTurn(self._worded(question), answer, "talk")

    def _worded(self, question: str) -> str:
        if self._rng.random() < SLOPPY:
            question = question.lower()
        if self._rng.random() < SLOPPY:
            question = question.rstrip(".?!") or question
        return question


def combination(lead: str, phrasing: str, subject: str) -> str:
    """The combination that is held out of training: wording and subject, or wording and lead without a subject."""
    return f"{phrasing}|{subject or lead}"


def numbers(text: str) -> list[int]:
    """The absolute values of the numbers in a text, without counts (single digits)."""
    digits = "".join(sign if sign.isdigit() else " " for sign in text)
    return [int(number) for number in digits.split() if len(number) > 1]
