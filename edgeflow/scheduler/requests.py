"""Chat requests: one after the other, each in chunks of its prompt and then token by token. Integers only.

A slot per declared prefix holds its rows, and slot 0 is for everything else. A request that begins with a whole prefix
runs in that prefix's slot, behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from edgeflow.scheduler.folding import Placement, Route, Straight
from edgeflow.scheduler.plan import Outcome, Pass, Segment


class Finish(str, Enum):
    """The reason an answer ended: a stop token or string, or no more room."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(slots=True, kw_only=True)
class RequestPlan:
    """One sequence of chat: rows of a prompt that enter a slot, then tokens.

    rows: of the prompt, `known` of them in the slot already and fewer than all. prefix_slot: where these were computed;
    None where there are none. tokens: most to answer with; 0 for a prefix, which is only computed. stop_ids: tokens
    that end the answer. route: which positions run next, and where in the slot. place: the position up to which rows
    are planned. passes: planned and not committed.
    """

    number: int
    slot: int
    rows: int
    known: int = 0
    prefix_slot: int | None = None
    tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    route: Route = field(default_factory=Straight)
    place: int = 0
    planned: int = 0
    settled: int = 0
    passes: int = 0
    finish: Finish | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.known < self.rows:
            raise ValueError(f"{self.known} rows of a prompt of {self.rows} are known: at least one must be computed")
        self.place = self.known

    @property
    def left(self) -> int:
        """Rows of the prompt that are not planned yet."""
        return max(self.rows - self.place, 0)

    @property
    def complete(self) -> bool:
        """True when no further pass is to be planned."""
        return self.finish is not None or not (self.left or self.planned < self.tokens)

    @property
    def folds(self) -> int:
        """Segments that are folded after the passes that are committed; one launched ahead may have folded another."""
        return self.route.settled(self.rows + max(self.settled - 1, 0))

    def next(self, most: int) -> Segment[int] | None:
        """At most `most` rows of the prompt, or the row of the newest token; None where all is planned."""
        if self.complete:
            return None
        known = self.rows + self.planned
        run = self.route.take(self.place, self.rows, known)
        length = min(most, run.stop - run.first)
        self.place = run.first + length
        segment = Segment(
            sequence=self.number,
            slot=self.slot,
            start=run.first - run.folded,
            length=length,
            stage=self.planned if run.again else 0,
            samples=int(self.tokens > 0 and self.place == known),
            before=run.before,
            gated=run.gated,
            folded=run.folded,
        )
        self.planned += segment.samples
        self.passes += 1
        return segment

    def commit(self, outcome: Outcome[int]) -> tuple[int, ...]:
        """Record what a pass gave; returns the tokens that belong to the answer, its stop token included."""
        self.passes -= 1
        if self.finish is not None:
            return ()
        answer: list[int] = []
        for token in outcome.tokens:
            answer.append(token)
            if token in self.stop_ids:
                self.finish = Finish.STOP
            elif self.settled + len(answer) == self.tokens:
                self.finish = Finish.LENGTH
            if self.finish is not None:
                break
        self.settled += len(answer)
        return tuple(answer)


class Requests:
    """Requests and changes of prefixes in order of arrival; the first runs to its end.

    prefixes: rows of the prefix in each slot that has one. placement: how sequences use the slots.
    """

    def __init__(self, prefixes: Mapping[int, int], placement: Placement) -> None:
        self.prefixes = dict(prefixes)
        self._placement = placement
        self.running: RequestPlan | None = None
        self._waiting: deque[int] = deque()
        self._launched: dict[int, RequestPlan] = {}
        self._passes = 0

    @property
    def first(self) -> int | None:
        """The request to begin next; None while one runs, or where none waits."""
        return self._waiting[0] if self._waiting and self.running is None else None

    def offer(self, number: int) -> None:
        """A request arrives."""
        self._waiting.append(number)

    def begin(self, rows: int, tokens: int, stop_ids: frozenset[int], shared: Mapping[int, int]) -> RequestPlan:
        """Begin the first request; it runs behind the longest prefix that it begins with.

        shared: rows of the prompt that are those of the prefix in each slot.
        """
        whole = {slot: count for slot, count in self.prefixes.items() if shared.get(slot) == count < rows}
        slot = max(whole, key=lambda slot: whole[slot], default=0)
        prefix, placement = whole.get(slot, 0), self._placement
        known = placement.reusable(prefix, prefix, rows)
        self.running = RequestPlan(
            number=self._waiting.popleft(),
            slot=slot if placement.shares_slots else 0,
            rows=rows,
            known=known,
            prefix_slot=slot if known else None,
            tokens=tokens,
            stop_ids=stop_ids,
            route=placement.route(prefix if known else 0),
        )
        return self.running

    def begin_prefix(self, slot: int, rows: int) -> None:
        """Begin to compute a slot's new prefix, the first in the queue; the old one is gone. rows 0: there is none."""
        self.prefixes.pop(slot, None)
        number = self._waiting.popleft()
        if rows:
            self.running = RequestPlan(number=number, slot=slot, rows=rows, route=self._placement.route())

    def drop(self, number: int) -> None:
        """End a request; passes that are launched end by themselves."""
        if self.running is not None and self.running.number == number:
            self._launched = {key: plan for key, plan in self._launched.items() if plan is not self.running}
            self.running = None
        elif number in self._waiting:
            self._waiting.remove(number)

    def plan(self, most: int) -> Pass[int] | None:
        """The next pass of the request that runs: a chunk of at most `most` rows, or a token."""
        segment = self.running.next(most) if self.running is not None else None
        if segment is None or self.running is None:
            return None
        number = self._passes
        self._passes += 1
        self._launched[number] = self.running
        return Pass(number, (segment,))

    def commit(self, number: int, outcomes: list[Outcome[int]]) -> tuple[int, ...]:
        """Record what a pass gave; the tokens of the answer, none where the request was dropped.

        A request that is answered, or a prefix that is computed, runs no more.
        """
        plan = self._launched.pop(number, None)
        if plan is None or plan is not self.running:
            return ()
        (outcome,) = outcomes
        tokens = plan.commit(outcome)
        if not plan.tokens and not plan.left and not plan.passes:
            self.prefixes[plan.slot] = plan.rows
            self.running = None
        elif plan.finish is not None:
            self.running = None
        return tokens
