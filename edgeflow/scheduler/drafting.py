"""How many drafts the next pass of a chat request verifies. Integers only.

A verification runs the newest token and the drafts after it, and yields a token for each draft that was right and
one more. While a pass of several rows is in flight, their number is not known: a plan counts on the fewest,
one per pass, to decide whether the answer is complete, and on the most to bound where rows may end.
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
"""Accepted drafts, of how many compared, with which every request begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRule:
    """The drafts that a request may have."""

    form: DraftForm = DraftForm.NONE
    rows: int = 1
    """Most rows of a verification, the newest token included."""
    places: int = UNBOUNDED
    """Positions of the slot, which no row may leave."""
    deepest: int = 0
    """Most rows on a path, which is what a verification can yield; 0 for all of them."""
    row_permille: int = 0
    """The time of one more row at the start of the slot, per mille of a pass of one."""
    row_growth: int = 0
    """How much more it is at the last of these places; it may be less than 0."""

    def most_tokens(self, rows: int) -> int:
        """The most tokens that a verification of so many rows yields."""
        return min(rows, self.deepest or rows)

    def permille_at(self, place: int) -> int:
        """The time of one more row at a place below `places`, per mille of a pass of one there."""
        return self.row_permille + self.row_growth * place // self.places


UNDRAFTED = DraftRule()


@dataclass(slots=True)
class DraftCounts:
    """The drafts of a request."""

    drafted: int = 0
    """Tokens that were verified."""
    accepted: int = 0
    """Accepted ones among them."""
    drafts: int = 0
    """Passes after the prompt with drafts."""
    plain: int = 0
    """Passes after the prompt without any."""


@dataclass(slots=True)
class Acceptance:
    """The share of a request's drafts that are accepted, each given that those before it are."""

    right: int = ASSUMED[0]
    judged: int = ASSUMED[1]

    def observe(self, drafts: int, accepted: int) -> None:
        """Record a pass; drafts after the first rejected one say nothing.

        A low share recovers in passes without drafts, so that they are tried again.
        """
        if not drafts:
            self.judged -= 2 * self.right < self.judged
        self.right += accepted
        self.judged += min(accepted + 1, drafts)
        while self.judged > REMEMBERED:
            self.right, self.judged = self.right // 2 + ASSUMED[0] // 2, self.judged // 2 + ASSUMED[1] // 2

    def pays(self, path: int, drafts: int, row_permille: int) -> bool:
        """True when a tree gives more tokens per time than a pass without. path: drafts of it that can be accepted."""
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
    verified: int = 0
    """Tokens that are known."""
    found: int = 0
    """Drafts after the newest token, as reported with it."""
    counts: DraftCounts = field(default_factory=DraftCounts)
    acceptance: Acceptance = field(default_factory=Acceptance)
    _flying: deque[int] = field(default_factory=deque)  # rows of each pass in flight that gives tokens

    @property
    def fewest(self) -> int:
        """The least number of known tokens once all passes in flight are committed."""
        return self.verified + len(self._flying)

    @property
    def most(self) -> int:
        """The greatest number of known tokens then."""
        return self.verified + sum(map(self.rule.most_tokens, self._flying))

    @property
    def certain(self) -> bool:
        """True when no pass of several rows is in flight."""
        return self.fewest == self.most

    def next_count(self, place: int, tokens: int, ahead: int, rows: int) -> int:
        """How many drafts the next pass verifies after the newest token.

        place: that the token enters. tokens: most that the answer may have. ahead: drafts before the next fold. rows:
        that the pass may have.
        """
        rule = self.rule
        if rule.form is DraftForm.NONE:
            return 0
        # While a pass is in flight, the drafter has not reported yet how many drafts follow: plan for all of them.
        standing = rule.rows - 1 if self._flying else min(self.found, rule.rows - 1)
        left = tokens - self.most - 1  # after the token that the newest one gives
        most = min(standing, ahead, rows - 1, rule.places - place - 1)
        if left <= 0 or most <= 0:
            return 0
        row_permille = rule.permille_at(place)
        if rule.form is DraftForm.TREE:
            return most if self.acceptance.pays(rule.most_tokens(1 + most) - 1, most, row_permille) else 0
        return self.acceptance.worthwhile(min(most, left), row_permille)

    def launched(self, rows: int) -> None:
        """Record a pass of so many rows that gives tokens."""
        self._flying.append(rows)

    def returned(self, tokens: int, found: int) -> int:
        """Record how many tokens the oldest pass gave; returns how many fewer than the most."""
        rows = self._flying.popleft()
        self.found = found
        if self.verified:  # it was not the end of the prompt
            self.counts.drafted += rows - 1
            self.counts.accepted += tokens - 1
            self.counts.drafts += rows > 1
            self.counts.plain += rows == 1
            self.acceptance.observe(self.rule.most_tokens(rows) - 1, tokens - 1)
        return self.rule.most_tokens(rows) - tokens
