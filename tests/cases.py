"""Cases of a test of which some run only at night."""

from __future__ import annotations

from collections.abc import Iterable
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


def _id(case: Iterable[Any]) -> str:
    return "-".join(map(_word, case))


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(map(_word, value))
    return str(getattr(value, "value", getattr(value, "name", value)))
