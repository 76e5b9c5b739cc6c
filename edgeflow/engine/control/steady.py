"""Tokens that are not displacements, such as the gripper's, in answers that leave before they are settled."""

from __future__ import annotations

from collections.abc import Sequence

AGREEMENT_BINS = 2


class SteadyTokens:
    """The last such tokens of one session. One that is not settled changes only when two frames in a row agree on it.

    near [K]: True for displacements, which are passed on as they are. Frames agree within AGREEMENT_BINS; only those
    that are answered count. The first one of an epoch has none to agree with, and its tokens are taken.
    """

    def __init__(self, near: Sequence[bool]) -> None:
        self._exact = [index for index, is_near in enumerate(near) if not is_near]
        self._epoch = 0
        self._before: dict[int, int] = {}
        self._in_force: dict[int, int] = {}

    def of(self, epoch: int, tokens: Sequence[int], settled: int) -> tuple[int, ...]:
        """The tokens to act on [K]. settled: how many of them are."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._before.clear()
            self._in_force.clear()
        chosen = list(tokens)
        for index in self._exact:
            token = tokens[index]
            agreed = abs(token - self._before.get(index, token)) <= AGREEMENT_BINS
            if index >= settled and not agreed:
                chosen[index] = self._in_force[index]
            self._before[index], self._in_force[index] = token, chosen[index]
        return tuple(chosen)
