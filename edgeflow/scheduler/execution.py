"""How a robot executes answers, and which of its frames are answered: it continues, slows down, or rests.

An answer is useful if it arrives while what it was computed for still holds. A policy *bridges* a delay when it
continues the chunk in execution over it. While answers come within that, the robot continues. Beyond, it executes rows
more slowly, so that fewer of them pass in the same time; where that does not suffice, it executes some rows, stands
still, and only then the frame is taken whose answer comes next. Integers, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgeflow.contract import Pace
from edgeflow_client.types import ActionSchema, Execution

FULL_RATE = 100
SLOW_RATES = (75, 50)
"""Rates of SLOW in per cent."""
CONTINUING = frozenset((Execution.AUTO, Execution.CONTINUE, Execution.SLOW))
"""Executions in which answers continue the chunk in execution, if the policy can."""
LONGEST_STEP_NS = 200_000_000
"""How long one step of a relative action is good for, with look-ahead (docs/benchmarks/closed-loop.md); longer where
the schema states a longer step.
"""
LONGEST_PASS_NS = 150_000_000
"""The longest pass in which drafts are verified for a moving robot, where an action is good for any latency. While a
robot rests, the passes that verify hold no newer frame, so they are short and the answer comes sooner; where passes
are long, that is worth the rests (docs/benchmarks/closed-loop.md).
"""
RESTED_NS = 400_000_000
"""The shortest motion between two rests, if the chunk has as much."""
UNDECIDED_ANSWERS = 2
"""Answers in a row beyond what fits, after which the robot stops continuing."""
SETTLED_ANSWERS = 8
"""Answers in a row well within what fits, after which it continues again."""
WELL_WITHIN = 80
"""Per cent of what fits."""
LOST_NS = 2_000_000_000
"""An answer that was sent so long ago, and whose arrival was not reported, is taken for lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFacts:
    """The executions that a policy and its schema permit."""

    horizon: int
    """Rows of an answer."""
    step_ns: int
    """Time of a row's motion (ActionSchema.motion_ns)."""
    bridged_ns: int | None
    """The longest delay that answers bridge at the full rate; None = any."""
    continues: bool
    """The policy continues chunks, so that CONTINUE is possible."""
    slows: bool
    """Rows may be executed more slowly."""
    rests: bool = False
    """Answers come sooner to a robot that stands still."""

    @classmethod
    def of(cls, schema: ActionSchema, bridged_rows: int, *, continues: bool, timed: bool) -> ExecutionFacts:
        """bridged_rows: of a chunk. timed: the policy takes the time of its rows as an input, so that it counts on
        their rate.
        """
        if schema.horizon > 1:
            step_ns = schema.motion_ns
            rates = any("/s" in unit for unit in schema.units)  # a velocity held for longer moves farther
            return cls(
                horizon=schema.horizon,
                step_ns=step_ns,
                bridged_ns=bridged_rows * step_ns,
                continues=continues,
                slows=not (timed or rates),
            )
        stepwise = any(schema.relative) and not schema.whole_way and schema.control_rate_hz > 0
        bridged_ns = max(schema.motion_ns, LONGEST_STEP_NS) if stepwise else None
        return cls(horizon=1, step_ns=schema.motion_ns, bridged_ns=bridged_ns, continues=False, slows=False)

    def at(self, pace: Pace, pass_ns: int) -> ExecutionFacts:
        """The facts of a session at a pace. pass_ns: of a packed pass."""
        drafts = pace.speculation
        verifies = drafts is not None and drafts.max_passes == 0
        return replace(self, rests=verifies and self.bridged_ns is None and pass_ns > LONGEST_PASS_NS)

    def refusal(self, asked: Execution | None) -> str:
        """Why a robot cannot ask for an execution; empty if it can."""
        if asked is Execution.CONTINUE and not self.continues:
            return "this policy does not continue chunks: ask for auto or fresh"
        if asked is Execution.SLOW and not self.slows:
            return "the rows of this policy cannot be executed more slowly: ask for auto or rest"
        return ""

    @property
    def onward(self) -> Execution:
        """The execution without rests, at the full rate."""
        return Execution.CONTINUE if self.continues else Execution.FRESH


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenExecution:
    """How answers are to be executed from now on."""

    execution: Execution
    rate_percent: int = FULL_RATE
    reason: str = ""
    """Why, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerExecution:
    """How the answer to one frame is executed."""

    execution: Execution
    rate_percent: int = FULL_RATE
    rows: int = 0
    """Rows to execute, after which the robot stands still; 0 = all."""
    from_arrival: bool = False
    """The robot stands still until the answer arrives, and begins with row 0 then."""
    valid_ns: int = 0
    """How long it may be executed: the forecast time until the next answer, and one camera period."""


class ExecutionChoice:
    """Chooses by the expected delay of answers and the time between them; changes are hysteretic.

    asked: anything but AUTO is what is chosen.
    """

    def __init__(self, asked: Execution, facts: ExecutionFacts) -> None:
        self._asked, self._facts = asked, facts
        self._against = 0  # answers in a row that another choice would have suited
        self.now = self._of(0, 0, FULL_RATE)

    def begin(self, delay_ns: int, gap_ns: int) -> None:
        """Choose by a forecast, before the first answer."""
        self._against, self.now = 0, self._of(delay_ns, gap_ns, FULL_RATE)

    def observe(self, delay_ns: int, gap_ns: int) -> bool:
        """Take the figures of the next answer; True if the choice changed."""
        wanted = self._of(delay_ns, gap_ns, FULL_RATE)
        returns = _pace(wanted) > _pace(self.now)
        if returns:  # towards the full rate, only once there is a margin
            wanted = self._of(delay_ns, gap_ns, WELL_WITHIN)
        if _same(wanted, self.now) or (returns and _pace(wanted) <= _pace(self.now)):
            self._against = 0
            return False
        self._against += 1
        if self._against < (SETTLED_ANSWERS if returns else UNDECIDED_ANSWERS):
            return False
        self._against, self.now = 0, wanted
        return True

    def _of(self, delay_ns: int, gap_ns: int, percent: int) -> ChosenExecution:
        """The choice for these figures, where only so many per cent of what fits may be used."""
        facts = self._facts
        if self._asked is not Execution.AUTO:
            rate = SLOW_RATES[0] if self._asked is Execution.SLOW else FULL_RATE
            return ChosenExecution(execution=self._asked, rate_percent=rate, reason="as asked for")
        delay_ms = delay_ns // 1_000_000
        bridged_ns = facts.bridged_ns
        if facts.rests:
            text = "passes are long, and drafts are verified sooner while the robot stands still"
            return ChosenExecution(execution=Execution.REST, reason=text)
        if bridged_ns is None:
            return ChosenExecution(execution=facts.onward, reason="an action is good for any latency")
        text = f"answers take {delay_ms} ms, and the policy bridges {bridged_ns // 1_000_000} ms"
        for rate in (FULL_RATE, *(SLOW_RATES if facts.slows else ())):
            fits = delay_ns * rate <= bridged_ns * percent
            lasts = facts.horizon == 1 or (delay_ns + gap_ns) * rate <= facts.horizon * facts.step_ns * percent
            if fits and lasts:
                slow = rate < FULL_RATE
                if slow:
                    text += f", {bridged_ns * FULL_RATE // rate // 1_000_000} ms at {rate} % of its rate"
                return ChosenExecution(
                    execution=Execution.SLOW if slow else facts.onward,
                    rate_percent=rate,
                    reason=text,
                )
            if fits:
                text = f"chunks are over {delay_ms + gap_ns // 1_000_000} ms after their capture, before the next one"
        return ChosenExecution(execution=Execution.REST, reason=text)


def _pace(choice: ChosenExecution) -> int:
    return 0 if choice.execution is Execution.REST else choice.rate_percent


def _same(one: ChosenExecution, other: ChosenExecution) -> bool:
    return (one.execution, one.rate_percent) == (other.execution, other.rate_percent)


class SessionExecution:
    """Which frames of a session are answered, and how their answers are executed.

    A robot that stands still is answered for one frame at a time, taken while it stands still: it begins with the first
    row of the answer when that arrives, whatever it took. After that a robot that continues is answered for every
    frame; one that rests is answered again once it has executed its rows. A change of execution goes through a rest,
    to which the last chunk before it leads.

    asked: None for a client that does not ask: all its frames are answered, and rows count from the capture.
    longest_ns: how long an execution that was asked for, other than AUTO, may move the robot without a further answer;
    None = no bound.
    """

    def __init__(
        self, asked: Execution | None, facts: ExecutionFacts, *, period_ns: int, longest_ns: int | None = None
    ) -> None:
        self._facts, self._period_ns = facts, period_ns
        self._longest_ns = None if asked is Execution.AUTO else longest_ns
        self._choice = None if asked is None else ExecutionChoice(asked, facts)
        self._moving: ChosenExecution | None = None  # what a moving robot executes: anything but REST
        self._awaited = 0  # the frame whose answer a resting robot waits for
        self._awaited_choice: ChosenExecution | None = None
        self._sent_ns: int | None = None  # when that answer was sent
        self._newest_sent = self._newest_sent_ns = 0  # of all answers, and when
        self._begun = 0  # the frame whose answer began the motion; frames from before its arrival are of another rest

    @property
    def now(self) -> ChosenExecution | None:
        """The present choice; None for a client that asks for no execution."""
        return self._choice.now if self._choice is not None else None

    def begin(self, delay_ns: int, gap_ns: int) -> None:
        """Choose by a forecast, before the first answer."""
        if self._choice is not None:
            self._choice.begin(delay_ns, gap_ns)

    def observe(self, delay_ns: int, gap_ns: int) -> bool:
        """The figures of the next answer; True if the choice changed."""
        return self._choice is not None and self._choice.observe(delay_ns, gap_ns)

    def may_answer(self, *, resting: bool, arrived: int, now_ns: int, busy: bool) -> bool:
        """True if a frame may be answered.

        resting: the robot stood still at its capture. arrived: the newest answer that had arrived then; 0 = none. busy:
        another frame of the session is with the worker.
        """
        if self._flows:
            return True
        if self._awaited:
            lost = self._sent_ns is not None and now_ns - self._sent_ns >= LOST_NS
            if arrived < self._awaited and not lost:
                return False
            self._begin(arrived >= self._awaited)
        if arrived < self._begun:
            return False
        if resting:
            self._moving = None
            # An answer on its way, to a frame from before the robot stood still, would set it in motion again.
            on_its_way = arrived < self._newest_sent and now_ns - self._newest_sent_ns < LOST_NS
            return not busy and not on_its_way
        return self._moving is not None

    def never_answers(self, *, resting: bool, arrived: int) -> bool:
        """True if a frame that may not be answered never will be, whatever comes: a newer one is needed."""
        if self._flows or self._awaited:
            return False
        return arrived < self._begun or (not resting and self._moving is None)

    def answer(self, seq: int, *, resting: bool, delay_ns: int, gap_ns: int) -> AnswerExecution | None:
        """How the answer to a frame that is passed on is executed; None for a client that asks for no execution."""
        if self._choice is None:
            return None
        wanted, moving = self._choice.now, self._moving
        if self._flows:
            self.halt()
            return self._made(wanted, 0, delay_ns, gap_ns)
        if resting or moving is None:
            self._awaited, self._awaited_choice, self._sent_ns = seq, wanted, None
            rests = wanted.execution is Execution.REST
            rows = self._rested_rows(delay_ns) if rests else 0
            return self._made(wanted, rows, delay_ns, gap_ns, from_arrival=resting)
        if _same(wanted, moving):
            return self._made(wanted, 0, delay_ns, gap_ns)
        # The answer leads to a rest, from which the other execution begins.
        self._awaited, self._awaited_choice, self._sent_ns = seq, None, None
        passed = -(-delay_ns * moving.rate_percent // (FULL_RATE * self._facts.step_ns))
        rows = min(passed + self._rested_rows(delay_ns), self._facts.horizon)
        return self._made(moving, rows, delay_ns, gap_ns)

    def sent(self, seq: int, now_ns: int) -> None:
        """The answer to a frame was sent to the robot."""
        self._newest_sent, self._newest_sent_ns = seq, now_ns
        if seq == self._awaited:
            self._sent_ns = now_ns

    def left(self, seq: int) -> None:
        """A frame left without an answer."""
        if seq == self._awaited:
            self._awaited, self._awaited_choice = 0, None

    def halt(self) -> None:
        """The robot holds, or a new epoch begins: it stands still. Answers may still be on their way to it."""
        self._awaited, self._awaited_choice, self._moving, self._begun = 0, None, None, 0

    def expected(self, delay_ns: int, gap_ns: int) -> AnswerExecution | None:
        """How answers are executed, as forecast when the session opens."""
        choice = self.now
        if choice is None:
            return None
        rests = choice.execution is Execution.REST
        rows = self._rested_rows(delay_ns) if rests else 0
        return self._made(choice, rows, delay_ns, gap_ns, from_arrival=rests)

    @property
    def _flows(self) -> bool:
        """True where every frame is answered: single actions depend on no other, and replace the one before them."""
        return self.now is None or (self._facts.horizon == 1 and self.now.execution is not Execution.REST)

    def _begin(self, arrived: bool) -> None:
        """The awaited answer arrived, and the robot executes it."""
        choice = self._awaited_choice
        rests = choice is None or choice.execution is Execution.REST
        self._moving = choice if arrived and not rests else None
        self._begun = self._awaited if arrived else self._begun
        self._awaited, self._awaited_choice, self._sent_ns = 0, None, None

    def _made(
        self, choice: ChosenExecution, rows: int, delay_ns: int, gap_ns: int, *, from_arrival: bool = False
    ) -> AnswerExecution:
        """The execution of an answer. A robot that stood still gets its next answer once a frame that was taken after
        its rows, or after it began to move, is answered.
        """
        step_ns = self._facts.step_ns * FULL_RATE // choice.rate_percent
        until_ns = gap_ns
        if rows:
            until_ns = rows * step_ns + delay_ns + self._period_ns
        elif from_arrival:
            until_ns = delay_ns + self._period_ns
        valid_ns = until_ns + self._period_ns
        if self._longest_ns is not None and not rows:  # a robot with few rows stands still after them
            valid_ns = min(valid_ns, self._longest_ns)
        return AnswerExecution(
            execution=choice.execution,
            rate_percent=choice.rate_percent,
            rows=rows,
            from_arrival=from_arrival,
            valid_ns=valid_ns,
        )

    def _rested_rows(self, delay_ns: int) -> int:
        """Rows between two rests: as long a motion as the wait, at least RESTED_NS, at most half of the chunk."""
        facts = self._facts
        if facts.horizon == 1:
            return 1
        wanted = -(-max(delay_ns, RESTED_NS) // facts.step_ns)
        most = facts.horizon // 2
        if self._longest_ns is not None:
            most = min(most, self._longest_ns // facts.step_ns)
        return max(min(wanted, most), 1)
