"""How many drafts the next pass of a chat request verifies. Integers only.

A verification runs the newest token and the drafts after it, and gives a token for each draft that was right and
one more. While a pass of several rows is in flight, nobody knows how many that will be: a plan counts on the fewest,
one for each pass, where it asks whether the answer is complete, and on the most where it asks where rows may end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from edgeflow.scheduler.folding import UNBOUNDED
from edgeflow.scheduler.plan import DraftForm

CERTAIN = 1024
"""The acceptance of a draft that is always right."""
REMEMBERED = 64
"""Drafts by which acceptance is judged; older ones count half, a quarter, and so on."""
ASSUMED = (2, 4)
"""Right drafts, of how many, that every request begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRule:
    """The drafts that a request may have."""

    form: DraftForm = DraftForm.NONE
    rows: int = 1
    """Most rows of a verification, the newest token included."""
    places: int = UNBOUNDED
    """Those of the slot, which no row may leave."""
    deepest: int = 0
    """Most rows on a path, which is what a verification can accept; 0 for all of them."""
    row_permille: int = 0
    """The time of one more row, per mille of a pass of one."""

    def settles(self, rows: int) -> int:
        """The most tokens that so many rows give."""
        return min(rows, self.deepest or rows)


UNDRAFTED = DraftRule()


@dataclass(slots=True)
class DraftCounts:
    """The drafts of a request."""

    drafted: int = 0
    """Tokens that were verified."""
    accepted: int = 0
    """Right ones among them."""
    drafts: int = 0
    plain: int = 0
    """Both: passes after the prompt with drafts, and without any."""


@dataclass(slots=True)
class Acceptance:
    """The share of a request's drafts that are right, each given that those before it are."""

    right: int = ASSUMED[0]
    judged: int = ASSUMED[1]

    def observe(self, drafts: int, accepted: int) -> None:
        """Record a pass; drafts after the first wrong one say nothing.

        A low share recovers in passes without drafts, so that they are tried again.
        """
        if not drafts:
            self.judged -= 2 * self.right < self.judged
        self.right += accepted
        self.judged += min(accepted + 1, drafts)
        while self.judged > REMEMBERED:
            self.right, self.judged = self.right // 2 + ASSUMED[0] // 2, self.judged // 2 + ASSUMED[1] // 2

    def pays(self, path: int, drafts: int, row_permille: int) -> bool:
        """True when a tree gives more tokens per time than a pass without. path: its drafts that can be right."""
        tokens = likely = CERTAIN
        for _ in range(path):
            likely = likely * self.right // self.judged
            tokens += likely
        return 1000 * tokens > CERTAIN * (1000 + drafts * row_permille)

    def worthwhile(self, most: int, row_permille: int) -> int:
        """The number of drafts, at most `most`, with which a pass gives the most tokens per time."""
        if not row_permille:
            return most
        best, best_rate, tokens, likely = 0, CERTAIN, CERTAIN, CERTAIN
        for drafts in range(1, most + 1):
            likely = likely * self.right // self.judged
            tokens += likely
            rate = 1000 * tokens // (1000 + drafts * row_permille)
            if rate > best_rate:
                best, best_rate = drafts, rate
        return best


@dataclass(slots=True, kw_only=True)
class Drafts:
    """The tokens of a request whose passes may verify drafts."""

    rule: DraftRule = UNDRAFTED
    settled: int = 0
    """Tokens that are known."""
    found: int = 0
    """Drafts after the newest one, as its outcome said."""
    counts: DraftCounts = field(default_factory=DraftCounts)
    acceptance: Acceptance = field(default_factory=Acceptance)
    _flying: deque[int] = field(default_factory=deque)  # rows of each pass in flight that gives tokens

    @property
    def fewest(self) -> int:
        """Tokens that there will be at least when all passes in flight are committed."""
        return self.settled + len(self._flying)

    @property
    def most(self) -> int:
        """Tokens that there may be then."""
        return self.settled + sum(map(self.rule.settles, self._flying))

    @property
    def certain(self) -> bool:
        """True when no pass of several rows is in flight."""
        return self.fewest == self.most

    def behind(self, place: int, tokens: int, ahead: int, rows: int) -> int:
        """How many drafts run after the newest token.

        place: that the token enters. tokens: most that the answer may have. ahead: drafts before the next fold. rows:
        that the pass may have.
        """
        rule = self.rule
        if rule.form is DraftForm.NONE:
            return 0
        standing = rule.rows - 1 if self._flying else min(self.found, rule.rows - 1)
        left = tokens - self.most - 1  # behind the token that the newest one gives
        most = min(standing, ahead, rows - 1, rule.places - place - 1)
        if left <= 0 or most <= 0:
            return 0
        if rule.form is DraftForm.TREE:
            return most if self.acceptance.pays(rule.settles(1 + most) - 1, most, rule.row_permille) else 0
        return self.acceptance.worthwhile(min(most, left), rule.row_permille)

    def launched(self, rows: int) -> None:
        """Record a pass of so many rows that gives tokens."""
        self._flying.append(rows)

    def returned(self, tokens: int, found: int) -> int:
        """Record how many tokens the oldest pass gave; returns how many fewer than the most."""
        rows = self._flying.popleft()
        self.found = found
        if self.settled:  # it was not the end of the prompt
            self.counts.drafted += rows - 1
            self.counts.accepted += tokens - 1
            self.counts.drafts += rows > 1
            self.counts.plain += rows == 1
            self.acceptance.observe(self.rule.settles(rows) - 1, tokens - 1)
        return self.rule.settles(rows) - tokens
