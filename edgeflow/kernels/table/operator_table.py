"""The operator implementation table (EdgeFM section 3.8): which implementation serves an operator, where.

An operator is a name with a signature; its file holds a reference and the candidates. An entry of the table says
which candidate serves a context, with which parameters; the most specific entry that matches and whose candidate may
run there wins, the last one of equals, and the reference serves where none does. Lookups happen when a model is
built, one per stage; where entries tell shapes apart, once more when a shape is first seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch

from edgeflow.kernels.table.built_in import BUILT_IN, DEFAULTS
from edgeflow.kernels.table.dimensions import KINDS, SIGNATURES, STAGES, Signed, covers, kv_formats, only_role
from edgeflow.kernels.table.implementations import REFERENCE, Hardware, Implementation
from edgeflow.kernels.weights import FLOAT
from edgeflow_client.errors import ConfigError

Params = dict[str, Any]
FORCED = "forced"
"""The origin of the entries of `OperatorTable.forcing`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorKey:
    """A context (EdgeFM table 1). In an entry, "" stands for any; in a lookup, for not known."""

    op_name: str
    model_name: str = ""
    hw_profile: str = ""
    """`cpu`, `cuda`, or cuda_sm87, which an entry for cuda matches too."""
    op_kind: str = ""
    layer_role: str = ""
    stage: str = ""
    weight: str = ""
    """The format in which the model has the weight of a linear."""
    kv: str = ""
    """The KV format that the call writes or reads."""
    shape_sig: str = ""
    """In an entry some of the sizes of a call, in a lookup all of them."""

    def matches(self, context: OperatorKey) -> bool:
        """True when an entry with this key serves a lookup of that context."""
        pairs = zip(self.values()[:-1], context.values()[:-1], strict=True)
        named = all(mine in ("", theirs) for mine, theirs in pairs) and covers(self.shape_sig, context.shape_sig)
        return named or (
            context.hw_profile.startswith(f"{self.hw_profile}_") and replace(self, hw_profile="").matches(context)
        )

    @property
    def specificity(self) -> tuple[int, int, int]:
        """The number of dimensions named; of equals, an architecture counts more than a kind of device, then the number
        of sizes."""
        sizes = len(self.shape_sig.split("|")) if self.shape_sig else 0
        return sum(value != "" for value in self.values()), self.hw_profile.count("_"), sizes

    def values(self) -> list[str]:
        return [getattr(self, field.name) for field in fields(self)]

    @property
    def text(self) -> str:
        """The dimensions that are named, but for the operator, for a person."""
        named = [f"{field.name}={value}" for field, value in zip(fields(self), self.values(), strict=True) if value]
        return ", ".join(name for name in named if not name.startswith("op_name="))


@dataclass(frozen=True, slots=True)
class TableEntry:
    """Where `key` matches, `impl_id` serves. An empty op_name stands for every operator that has such a candidate."""

    key: OperatorKey
    impl_id: str
    impl_params: Params = field(default_factory=dict)
    origin: str = "built in"
    """Where the entry comes from: built in, or the file of an overlay."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementation that serves a context."""

    implementation: Implementation
    params: Params
    reason: str
    """The reason for the choice, for a person."""
    passed_over: tuple[str, ...] = ()
    """Better matches that cannot run here, with the reasons."""

    def load(self) -> Callable[..., Any]:
        function = self.implementation.load()
        return partial(function, **self.params) if self.params else function


class OperatorTable:
    """Immutable; `overlaid`, `converting` and `forcing` give changed ones.

    conversions: the formats that float weights may be converted to.
    """

    def __init__(
        self,
        implementations: Iterable[Implementation],
        entries: Iterable[TableEntry],
        conversions: frozenset[str] = frozenset(),
    ) -> None:
        self._implementations = tuple(implementations)
        self.entries = tuple(entries)
        self._conversions = conversions
        self._chosen: dict[tuple[OperatorKey, Hardware, torch.dtype], Choice] = {}
        for entry in self.entries:
            self._check(entry)

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.op_name for each in self._implementations))

    def implementation(self, op_name: str, impl_id: str, kv: str = "") -> Implementation:
        """The implementation of that name for a KV format, the first one where `kv` is empty; ConfigError lists those
        known."""
        for each in self.named(op_name, impl_id):
            if each.takes(kv):
                return each
        known = ", ".join(self.candidates(op_name, kv)) or "none: no operator of this name"
        of_format = f" for {kv} KV" if kv else ""
        raise ConfigError(f"operator {op_name}: no implementation {impl_id!r}{of_format}; known: {known}")

    def candidates(self, op_name: str, kv: str = "", weight: str = "") -> tuple[str, ...]:
        """impl_ids of an operator for a KV format and a format of weights, with the reference."""
        mine = (each for each in self._implementations if each.op_name == op_name and each.takes(kv))
        mine = (each for each in mine if each.takes_weight(weight))
        return tuple(dict.fromkeys(each.impl_id for each in mine))

    def named(self, op_name: str, impl_id: str) -> tuple[Implementation, ...]:
        """The implementations that an entry of these names may mean; of every operator where op_name is empty."""
        return tuple(
            each for each in self._implementations if each.impl_id == impl_id and op_name in ("", each.op_name)
        )

    def overlaid(self, *entries: TableEntry) -> OperatorTable:
        """A table with further entries, which win over equally specific ones."""
        return self._with((*self.entries, *entries))

    def converting(self, to: str) -> OperatorTable:
        """A table in which what serves weights of a format serves float ones too, which are converted to it."""
        serving = [each for each in self._implementations if each.weight == to and each.converts]
        if not serving:
            raise ConfigError(f"no implementation takes {to!r} weights")
        origin = f"float weights become {to}"
        entries = [
            TableEntry(
                OperatorKey(op_name=each.op_name, hw_profile=device, stage=each.stage), each.impl_id, origin=origin
            )
            for each in serving
            for device in each.devices
        ]
        return self._with((*self.entries, *entries), self._conversions | {to})

    def forcing(self, **impl_ids: str) -> OperatorTable:
        """A table in which each operator named has one entry: that implementation, everywhere."""
        others = [entry for entry in self.entries if entry.key.op_name not in impl_ids]
        forced = [TableEntry(OperatorKey(op_name=name), impl_id, origin=FORCED) for name, impl_id in impl_ids.items()]
        return self._with([*others, *forced])

    def forces(self, op_name: str, impl_id: str) -> bool:
        """True where the one entry of an operator is this implementation, everywhere."""
        return [entry for entry in self.entries if entry.key.op_name == op_name] == [
            TableEntry(OperatorKey(op_name=op_name), impl_id, origin=FORCED)
        ]

    def _with(self, entries: Iterable[TableEntry], conversions: frozenset[str] | None = None) -> OperatorTable:
        kept = self._conversions if conversions is None else conversions
        return OperatorTable(self._implementations, entries, kept)

    def objection(self, candidate: Implementation, context: OperatorKey, hardware: Hardware, dtype: torch.dtype) -> str:
        """The reason why a candidate cannot serve a context, in a few words; "" when it can."""
        stored = candidate.weight in ("", context.weight) and candidate.stored
        converted = context.weight == FLOAT and candidate.weight in self._conversions and candidate.converts
        if not stored and not converted:
            return f"takes {candidate.weight} weights"
        if context.stage and candidate.stage not in ("", context.stage):
            return f"only for {candidate.stage} passes"
        return candidate.objection(hardware, dtype, context.shape_sig)

    def resolve(self, context: OperatorKey, device: torch.device, dtype: torch.dtype) -> Any:
        """The function that serves a context; one that looks at shapes where entries tell shapes or stages apart."""
        hardware = Hardware.of(device)
        sign = SIGNATURES.get(context.op_name)
        if sign is None or not self._depends_on_the_call(known(context, hardware)):
            return self.choose(context, hardware, dtype).load()

        def find(stage: str, shape_sig: str) -> Callable[..., Any]:
            key = replace(context, stage=context.stage or stage, shape_sig=shape_sig)
            return self.choose(key, hardware, dtype).load()

        return ByShape(sign, find)

    def resolve_stages(self, context: OperatorKey, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        """The function that serves a context in each stage of a pass."""
        return {stage: self.resolve(replace(context, stage=stage), device, dtype) for stage in STAGES}

    def stages(self, context: OperatorKey) -> tuple[tuple[str, ...], ...]:
        """The stages of a pass in groups; entries of this operator tell only the groups apart."""
        meant = [entry for entry in self.entries if entry.key.weight in ("", context.weight)]
        entries = [entry for entry in meant if entry.key.op_name in ("", context.op_name)]
        serving = [each for entry in entries for each in self.named(context.op_name, entry.impl_id)]
        named = {entry.key.stage for entry in entries} | {each.stage for each in serving}
        rest = tuple(stage for stage in STAGES if stage not in named)
        return (*((stage,) for stage in STAGES if stage in named), *([rest] if rest else []))

    def choose(self, context: OperatorKey, hardware: Hardware, dtype: torch.dtype) -> Choice:
        """The choice by the most specific entry that can serve; the reference where none can. Cached."""
        key = context, hardware, dtype
        if key not in self._chosen:
            self._chosen[key] = self._choice(known(context, hardware), hardware, dtype)
        return self._chosen[key]

    def _choice(self, context: OperatorKey, hardware: Hardware, dtype: torch.dtype) -> Choice:
        passed_over: list[str] = []
        for entry in self._best_first(context):
            candidate = self.implementation(context.op_name, entry.impl_id, context.kv)
            objection = self.objection(candidate, context, hardware, dtype)
            if not objection:
                why = f"{entry.origin}: {entry.key.text or 'everywhere'}"
                return Choice(candidate, entry.impl_params, why, tuple(passed_over))
            passed_over.append(f"{entry.impl_id}: {objection}")
        reference = self.implementation(context.op_name, REFERENCE, context.kv)
        return Choice(reference, {}, "no entry serves here", tuple(passed_over))

    def reads_places(self, model_name: str, kv: str, hardware: Hardware, dtype: torch.dtype) -> bool:
        """True when attention over a KV format reads on the host where rows are placed."""
        op_name, layer_role = "packed_attention", "self_attention"
        keys = (
            OperatorKey(op_name=op_name, model_name=model_name, layer_role=layer_role, stage=stage, kv=kv)
            for stage in STAGES
        )
        return any(not self.choose(key, hardware, dtype).implementation.replayable for key in keys)

    def _best_first(self, context: OperatorKey) -> list[TableEntry]:
        matching = [entry for entry in self.entries if is_for(entry, context)]
        known = self.candidates(context.op_name, context.kv)
        matching = [entry for entry in matching if entry.impl_id in known]
        return sorted(matching, key=lambda entry: entry.key.specificity)[::-1]  # the last of equals first

    def _depends_on_the_call(self, context: OperatorKey) -> bool:
        """True when entries distinguish stages or shapes that the context leaves open."""

        def open_to(entry: TableEntry) -> bool:
            key = entry.key
            known = {name: getattr(key, name) if getattr(context, name) else "" for name in ("stage", "shape_sig")}
            closed = replace(key, **known)
            return closed != key and closed.matches(_named_as(entry, context))

        return any(open_to(entry) for entry in self.entries)

    def _check(self, entry: TableEntry) -> None:
        meant = [each for each in self.named(entry.key.op_name, entry.impl_id) if each.takes(entry.key.kv)]
        if not meant:
            self.implementation(entry.key.op_name or self.operators[0], entry.impl_id, entry.key.kv)
        for each in meant:
            unknown = [name for name in entry.impl_params if name not in each.choices]
            if unknown:
                raise ConfigError(f"operator {each.op_name}: {entry.impl_id} has no parameter {', '.join(unknown)}")


def known(context: OperatorKey, hardware: Hardware) -> OperatorKey:
    """The context with what follows from the device and the operator's name. Weights are float if not said."""
    kind, role = KINDS.get(context.op_name, ""), only_role(context.op_name)
    weight = FLOAT if kind == "linear" else ""
    return replace(
        context,
        hw_profile=context.hw_profile or hardware.profile,
        op_kind=context.op_kind or kind,
        layer_role=context.layer_role or role,
        weight=context.weight or weight,
        kv=context.kv or kv_formats(context.op_name)[0],
    )


def is_for(entry: TableEntry, context: OperatorKey) -> bool:
    return entry.key.op_name in ("", context.op_name) and entry.key.matches(_named_as(entry, context))


def _named_as(entry: TableEntry, context: OperatorKey) -> OperatorKey:
    return context if entry.key.op_name else replace(context, op_name="")


def built_in_table(*others: Implementation) -> OperatorTable:
    """The table of the implementations and defaults in this package, and of other implementations."""
    entries = [
        TableEntry(OperatorKey(op_name=op_name, hw_profile=profile), impl_id)
        for profile, defaults in DEFAULTS.items()
        for op_name, impl_ids in defaults.items()
        for impl_id in (impl_ids if isinstance(impl_ids, tuple) else (impl_ids,))
    ]
    entries += [
        TableEntry(
            OperatorKey(op_name=each.op_name, hw_profile=device, stage=each.stage, weight=each.weight), each.impl_id
        )
        for each in BUILT_IN
        if each.weight not in ("", FLOAT) and each.stored
        for device in each.devices
    ]
    return OperatorTable((*BUILT_IN, *others), entries)


Find = Callable[[str, str], Callable[..., Any]]
"""(stage, shape signature) → the function that serves"""


class ByShape:
    """A function that looks up each shape of a call when it is first seen."""

    def __init__(self, sign: Callable[..., Signed], find: Find) -> None:
        self._sign = sign
        self._find = find
        self._found: dict[Signed, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        signed = self._sign(*arguments)
        if signed not in self._found:
            self._found[signed] = self._find(*signed)
        return self._found[signed](*arguments)
