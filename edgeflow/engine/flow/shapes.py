"""The shapes of a flow policy's passes, and the few that they are padded to where they are replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

from edgeflow.engine.flow.frames import FlowSizes
from edgeflow.engine.flow.rows import RowCounts
from edgeflow.engine.shapes import doubling, least, multiples

ROW_STEP = 64
"""The rows of a prefix are padded to a multiple of it, as a GEMM's tiles have."""
MOST_PREFIXES = 4


@dataclass(frozen=True, kw_only=True)
class FlowPassShape:
    """Everything about a pass that the host decides it by."""

    rows: RowCounts
    cameras: tuple[int, ...]
    """Images of each prefix."""
    guided: bool
    """True where some frame that steps continues another chunk."""
    whole: bool = False
    """True where the frames that begin take all of their steps; `rows.steps` is their number then."""


class FlowClasses:
    """The shapes to which passes are padded: a whole chunk of one frame, or prefixes beside steps, with all cameras.

    rows: of a prefix of so many cameras and tokens. tokens: of the longest text. Stepping frames are padded
    to N times a power of two, or to N halved, once or more, and rounded up. row_budget: no pass is padded beyond it but
    that of a robot by itself.
    """

    def __init__(
        self,
        rows: Callable[[int, int], int],
        sizes: FlowSizes,
        *,
        cameras: int,
        tokens: int,
        sessions: int,
        capacity: int,
        row_budget: int,
    ) -> None:
        self._rows = rows
        self._cameras = cameras
        self._capacity = capacity
        self._step_rows, steps = sizes.step_rows, sizes.steps
        self._most_rows = max(row_budget, rows(cameras, tokens) + steps * sizes.step_rows)
        fixed = rows(cameras, 0)
        ends = multiples(ROW_STEP, fixed + 1, fixed + max(tokens, 1))
        self._tokens = tuple(dict.fromkeys(min(end - fixed, tokens) for end in ends))
        halves = {-(-steps // (1 << power)) for power in range(steps.bit_length() + 1)}
        self._steps = tuple(sorted(halves | set(doubling(steps, sessions * steps))))
        self._prefixes = tuple(count for count in doubling(1, MOST_PREFIXES) if count <= max(sessions, 1))

    def fit(self, shape: FlowPassShape) -> FlowPassShape | None:
        """The shape that a pass is padded to; None where it runs as it is."""
        tokens, count = shape.rows.tokens, len(shape.rows.tokens)
        if any(each != self._cameras for each in shape.cameras) or (shape.whole and count > 1):
            return None
        prefixes = least((0, *self._prefixes), count)
        longest = least(self._tokens, max(tokens, default=0))
        steps = 1 if shape.whole else least((0, *self._steps), shape.rows.steps)
        if prefixes is None or longest is None or steps is None:
            return None
        found = self._made(prefixes, longest if prefixes == 1 else self._tokens[-1], steps, shape.guided, shape.whole)
        return found if self._fits(found) else None

    def all(self, *, guided: bool) -> list[FlowPassShape]:
        """Every shape that `fit` returns. guided: the policy can continue chunks."""
        kinds = (False, True) if guided else (False,)
        found: Iterable[FlowPassShape] = (
            self._made(1, tokens, 1, kind, True) for tokens, kind in product(self._tokens, kinds)
        )
        shapes = list(found)
        for prefixes, steps in product((0, *self._prefixes), (0, *self._steps)):
            texts = self._tokens if prefixes == 1 else self._tokens[-1:]
            some = kinds if steps else (False,)
            if prefixes or steps:
                shapes += [self._made(prefixes, tokens, steps, kind, False) for tokens, kind in product(texts, some)]
        return [shape for shape in shapes if self._fits(shape)]

    def _fits(self, shape: FlowPassShape) -> bool:
        return sum(shape.rows.prefixes) + shape.rows.steps * self._step_rows <= self._most_rows

    def _made(self, prefixes: int, tokens: int, steps: int, guided: bool, whole: bool) -> FlowPassShape:
        rows = RowCounts(
            prefixes=(self._rows(self._cameras, tokens),) * prefixes,
            tokens=(tokens,) * prefixes,
            steps=steps,
            reach=self._capacity,
        )
        return FlowPassShape(rows=rows, cameras=(self._cameras,) * prefixes, guided=guided, whole=whole)
