"""Cases of a test of which some run only at night."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest


def by_night(*values: Any, id: str | None = None) -> Any:
    """A case of `parametrize` that `make test-all` leaves out and `scripts/nightly` runs."""
    return pytest.param(*values, marks=pytest.mark.night, id=id)


def some_by_day(cases: Iterable[Any], by_day: Iterable[Any]) -> list[Any]:
    """All cases, each a tuple of its values; those that are not in by_day run at night."""
    chosen, every = set(by_day), list(cases)
    assert chosen < set(every), "cases of the day are some of all"
    return [pytest.param(*case, id=_id(case)) if case in chosen else by_night(*case, id=_id(case)) for case in every]


def pairs_by_day(*parameters: Iterable[Any]) -> list[Any]:
    """Every combination of the parameters' values; by day enough of them that any two values of two parameters meet."""
    values = [list(each) for each in parameters]
    every = list(product(*(range(len(each)) for each in values)))
    open_pairs = {pair for case in every for pair in _pairs(case)}
    by_day = set()
    while open_pairs:
        chosen = max(every, key=lambda case: len(open_pairs & _pairs(case)))  # of equal ones the first
        by_day.add(chosen)
        open_pairs -= _pairs(chosen)
    cases = [tuple(each[index] for each, index in zip(values, case, strict=True)) for case in every]
    return [
        pytest.param(*case, id=_id(case)) if key in by_day else by_night(*case, id=_id(case))
        for key, case in zip(every, cases, strict=True)
    ]


def _pairs(case: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    return set(combinations(enumerate(case), 2))


def _id(case: Iterable[Any]) -> str:
    return "-".join(map(_word, case))


def _word(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "+".join(map(_word, value))
    names = (getattr(value, name, None) for name in ("value", "name", "__name__"))
    return str(next((name for name in names if name is not None), value))
