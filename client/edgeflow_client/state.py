"""Encoding of proprioceptive state for the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeflow_client.errors import InvalidArgument
from edgeflow_client.types import StateSpec

Numbers: TypeAlias = "Sequence[float] | NDArray[Any]"
State: TypeAlias = Mapping[str, Numbers]


def encode_state(state: State | None, proprio: Sequence[float], specs: Sequence[StateSpec]) -> Sequence[float]:
    """The numbers of all vectors one after another, in the order of `specs`.

    state: vectors by name. proprio: these numbers themselves, instead. InvalidArgument names the vector at fault and
    what is expected; every number must be finite as float32.
    """
    if state is None:
        return _flat(proprio, specs)
    _check_named(state, specs)
    if len(proprio):
        raise InvalidArgument("give the state by name or as proprio, not both", field="state")
    names = [spec.name for spec in specs]
    if set(state) != set(names):
        raise InvalidArgument(
            f"has {sorted(state, key=str)}; the session was opened with {sorted(names)}", field="state"
        )
    return [number for spec in specs for number in _vector(state[spec.name], spec)]


def _check_named(state: object, specs: Sequence[StateSpec]) -> None:
    if not isinstance(state, Mapping):
        named = ", ".join(f"{spec.name!r}: [{spec.size} numbers]" for spec in specs)
        raise InvalidArgument(f"must be a dict {{{named}}}, got {type(state).__name__}", field="state")


def _check_flat(proprio: object) -> None:
    if isinstance(proprio, str | bytes) or not isinstance(proprio, Sequence | np.ndarray):
        raise InvalidArgument(
            f"must be a list or a numpy array of numbers, got {type(proprio).__name__}", field="proprio"
        )


def _flat(proprio: Sequence[float], specs: Sequence[StateSpec]) -> Sequence[float]:
    _check_flat(proprio)
    agreed = sum(spec.size for spec in specs)
    if len(proprio) != agreed:
        raise InvalidArgument(
            f"has {len(proprio)} values; the session was opened with {agreed}: {_sizes(specs)}", field="proprio"
        )
    start = 0
    for spec in specs:
        _vector(proprio[start : start + spec.size], spec)
        start += spec.size
    return proprio


def _vector(values: Numbers, spec: StateSpec) -> list[float]:
    field = f"state[{spec.name!r}]"
    try:
        given = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # ragged, or an array of another library on its own device
        given = np.array(None)
    if given.dtype.kind not in "bfiu":
        raise InvalidArgument(f"must be {spec.size} numbers, got {type(values).__name__} {values!r:.80}", field=field)
    with np.errstate(over="ignore"):
        numbers = given.astype(np.float32)
    if numbers.shape != (spec.size,):
        raise InvalidArgument(
            f"has shape {list(numbers.shape)}; the session was opened with [{spec.size}]", field=field
        )
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if wrong.size:
        raise InvalidArgument(f"has {values[wrong[0]]!r} at {wrong[0]}; it must be a finite float32", field=field)
    return [float(number) for number in numbers]


def _sizes(specs: Sequence[StateSpec]) -> str:
    return ", ".join(f"{spec.name!r} of {spec.size}" for spec in specs) or "no state"
