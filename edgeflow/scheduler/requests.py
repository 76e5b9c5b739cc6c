"""Chat requests: one after the other, each in chunks of its prompt and then token by token. Integers only.

A slot per declared prefix holds its rows, and slot 0 is for everything else. A request that begins with a whole prefix
runs in that prefix's slot, after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from edgeflow.scheduler.drafting import UNDRAFTED, DraftRule, Drafts
from edgeflow.scheduler.folding import UNBOUNDED, Route, SlotUse
from edgeflow.scheduler.plan import Outcome, Pass, Segment


class Finish(str, Enum):
    """The reason an answer ended: a stop token or string, or no more room."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(slots=True, kw_only=True)
class RequestPlan:
    """One sequence of chat: rows of a prompt that enter a slot, then tokens."""

    number: int
    slot: int
    rows: int
    """Rows of the prompt."""
    known: int = 0
    prefix_slot: int | None = None
    """Where these were computed; None where there are none."""
    tokens: int = 0
    """Most to answer with; 0 for a prefix, which is only computed."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the answer."""
    route: Route = field(default_factory=Route)
    """Which positions run next, and where in the slot."""
    rule: DraftRule = UNDRAFTED
    """The rule of its drafts."""
    place: int = 0
    """The position up to which rows are planned, or the furthest that this may be."""
    passes: int = 0
    """Planned and not committed."""
    finish: Finish | None = None
    drafts: Drafts = field(init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.known < self.rows:
            raise ValueError(f"{self.known} rows of a prompt of {self.rows} are known: at least one must be computed")
        self.place = self.known
        self.drafts = Drafts(rule=self.rule)

    @property
    def planned(self) -> int:
        """Tokens of the answer that passes give at least, those that are not committed included."""
        return self.drafts.fewest

    @property
    def verified(self) -> int:
        """Tokens of the answer that are known."""
        return self.drafts.verified

    @property
    def rows_left(self) -> int:
        """Rows of the prompt that are not planned yet."""
        return max(self.rows - self.place, 0)

    @property
    def complete(self) -> bool:
        """True when no further pass is to be planned."""
        return self.finish is not None or not (self.rows_left or self.planned < self.tokens)

    @property
    def is_blocked(self) -> bool:
        """True when the next pass depends on how many tokens those in flight give: all that are left, or less."""
        drafts = self.drafts
        bounded = self.route.ahead(self.rows + drafts.fewest) < UNBOUNDED
        return not drafts.certain and (bounded or drafts.most >= self.tokens)

    @property
    def folds(self) -> int:
        """Segments that are folded after the passes that are committed; one launched ahead may have folded another."""
        return self.route.folded_at(self.rows + max(self.verified - 1, 0))

    def next(self, most: int) -> Segment[int] | None:
        """At most `most` rows of the prompt, or the newest token and drafts after it; None where all is planned, or
        where the plan waits.
        """
        if self.complete or self.is_blocked:
            return None
        drafts, certain = self.drafts, self.drafts.certain
        known, stage = self.rows + drafts.most, drafts.fewest
        run = self.route.take(self.place, self.rows, known)
        length, place = min(most, run.stop - run.first), run.first - run.folded
        self.place = run.first + length
        ends, guessed = self.place == known, 0
        if run.again and ends and length == 1:
            guessed = drafts.next_count(place, self.tokens, self.route.ahead(known), most)
        # Plan for the furthest place that the pass can reach; `commit` takes back what was not accepted.
        self.place += self.rule.most_tokens(1 + guessed) - 1
        if self.tokens and ends:
            drafts.launched(1 + guessed)
        self.passes += 1
        return Segment(
            sequence=self.number,
            slot=self.slot,
            start=place,
            length=length + guessed,
            stage=stage if run.again else 0,
            samples=1 + guessed if self.tokens and ends else 0,
            certain=certain,
            drafts=guessed,
            before=run.before,
            gated=run.gated,
            folded=run.folded,
            form=self.rule.form,
        )

    def commit(self, outcome: Outcome[int]) -> tuple[int, ...]:
        """Record what a pass gave; returns the tokens that belong to the answer, its stop token included."""
        self.passes -= 1
        if outcome.tokens:
            self.place -= self.drafts.returned(len(outcome.tokens), outcome.found)
        if self.finish is not None:
            return ()
        answer: list[int] = []
        for token in outcome.tokens:
            answer.append(token)
            if token in self.stop_ids:
                self.finish = Finish.STOP
            elif self.verified + len(answer) == self.tokens:
                self.finish = Finish.LENGTH
            if self.finish is not None:
                break
        self.drafts.verified += len(answer)
        return tuple(answer)


class Requests:
    """Requests and changes of prefixes in order of arrival; the first runs to its end.

    prefixes: rows of the prefix in each slot that has one. placement: how sequences use the slots. rule: of the drafts
    of prefixes, which are made for whoever continues them.
    """

    def __init__(self, prefixes: Mapping[int, int], placement: SlotUse, rule: DraftRule = UNDRAFTED) -> None:
        self.prefixes = dict(prefixes)
        self._placement = placement
        self._rule = rule
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

    def begin(
        self,
        rows: int,
        tokens: int,
        stop_ids: frozenset[int],
        shared: Mapping[int, int],
        rule: DraftRule = UNDRAFTED,
    ) -> RequestPlan:
        """Begin the first request; it runs after the longest prefix that it begins with.

        shared: rows of the prompt that are those of the prefix in each slot. rule: of its drafts.
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
            rule=rule,
        )
        return self.running

    def begin_prefix(self, slot: int, rows: int) -> None:
        """Begin to compute a slot's new prefix, the first in the queue; the old one is gone. rows 0: there is none."""
        self.prefixes.pop(slot, None)
        number = self._waiting.popleft()
        if rows:
            self.running = RequestPlan(
                number=number, slot=slot, rows=rows, route=self._placement.route(), rule=self._rule
            )

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
        if not plan.tokens and not plan.rows_left and not plan.passes:
            self.prefixes[plan.slot] = plan.rows
            self.running = None
        elif plan.finish is not None:
            self.running = None
        return tokens
