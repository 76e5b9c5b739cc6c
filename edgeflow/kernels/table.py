"""The operator implementation table (EdgeFM section 3.8): which implementation serves an operator, where.

An operator is a name with a signature; its file holds a reference and the candidates. An entry of the table says
which candidate serves a context; the most specific entry that matches and whose candidate may run there wins, the
last one of equals, and the reference serves where none does. Lookups happen when a model is built, not when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from edgeflow.errors import ConfigError
from edgeflow.kernels import packed_attention, rms_norm, rope_write_kv, shift_kv, swiglu

REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Implementation:
    """A candidate. devices, dtypes: where it may run; empty means everywhere."""

    op_name: str
    impl_id: str
    function: Callable[..., Any]
    devices: frozenset[str] = frozenset()
    dtypes: frozenset[torch.dtype] = frozenset()

    def runs_on(self, device: torch.device, dtype: torch.dtype) -> bool:
        return (not self.devices or device.type in self.devices) and (not self.dtypes or dtype in self.dtypes)


@dataclass(frozen=True, slots=True)
class OperatorKey:
    """A context (EdgeFM table 1). In an entry, "" stands for any; in a lookup, for not known."""

    op_name: str
    model_name: str = ""
    hw_profile: str = ""
    op_kind: str = ""
    layer_role: str = ""
    stage: str = ""
    shape_sig: str = ""

    def matches(self, context: OperatorKey) -> bool:
        return all(mine in ("", theirs) for mine, theirs in zip(self._values(), context._values(), strict=True))

    @property
    def specificity(self) -> int:
        return sum(value != "" for value in self._values())

    def _values(self) -> list[str]:
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where `key` matches, `impl_id` serves."""

    key: OperatorKey
    impl_id: str


class OperatorTable:
    """Immutable; `overlaid` gives a changed one."""

    def __init__(self, implementations: Iterable[Implementation], entries: Iterable[Entry]) -> None:
        self._implementations = {(each.op_name, each.impl_id): each for each in implementations}
        self._entries = tuple(entries)
        for entry in self._entries:
            self.implementation(entry.key.op_name, entry.impl_id)

    def implementation(self, op_name: str, impl_id: str) -> Implementation:
        """By name; ConfigError lists what there is."""
        try:
            return self._implementations[op_name, impl_id]
        except KeyError:
            known = ", ".join(self.candidates(op_name)) or "none: no operator of this name"
            raise ConfigError(f"operator {op_name}: no implementation {impl_id!r}; known: {known}") from None

    def candidates(self, op_name: str) -> tuple[str, ...]:
        """impl_ids of an operator, the reference among them."""
        return tuple(impl_id for name, impl_id in self._implementations if name == op_name)

    def overlaid(self, *entries: Entry) -> OperatorTable:
        """A table with further entries, which win over equally specific ones."""
        return OperatorTable(self._implementations.values(), (*self._entries, *entries))

    def forcing(self, **impl_ids: str) -> OperatorTable:
        """A table in which the operators named have one entry: this implementation, everywhere."""
        others = [entry for entry in self._entries if entry.key.op_name not in impl_ids]
        forced = [Entry(OperatorKey(name), impl_id) for name, impl_id in impl_ids.items()]
        return OperatorTable(self._implementations.values(), [*others, *forced])

    def resolve(self, context: OperatorKey, device: torch.device, dtype: torch.dtype) -> Any:
        """The function that serves a context; the reference where no entry does."""
        context = replace(context, hw_profile=context.hw_profile or device.type)
        best = -1
        chosen = self.implementation(context.op_name, REFERENCE)
        for entry in self._entries:
            candidate = self.implementation(entry.key.op_name, entry.impl_id)
            fits = entry.key.matches(context) and candidate.runs_on(device, dtype)
            if fits and entry.key.specificity >= best:
                best, chosen = entry.key.specificity, candidate
        return chosen.function


_BUILT_IN = (
    Implementation("rms_norm", "reference", rms_norm.reference),
    Implementation("rms_norm", "fused", rms_norm.fused),
    Implementation("rope_write_kv", "reference", rope_write_kv.reference),
    Implementation("rope_write_kv", "indexed", rope_write_kv.indexed),
    Implementation("packed_attention", "reference", packed_attention.reference),
    Implementation("packed_attention", "naive_gather", packed_attention.naive_gather),
    Implementation("packed_attention", "slots_in_place", packed_attention.slots_in_place),
    Implementation("swiglu", "reference", swiglu.reference),
    Implementation("swiglu", "fused", swiglu.fused),
    Implementation("shift_kv", "reference", shift_kv.reference),
    Implementation("shift_kv", "strided", shift_kv.strided),
)
_DEFAULTS = {
    "rms_norm": "fused",
    "rope_write_kv": "indexed",
    "packed_attention": "slots_in_place",
    "swiglu": "fused",
    "shift_kv": "strided",
}


def built_in_table() -> OperatorTable:
    """What this package brings."""
    return OperatorTable(_BUILT_IN, [Entry(OperatorKey(name), impl_id) for name, impl_id in _DEFAULTS.items()])
