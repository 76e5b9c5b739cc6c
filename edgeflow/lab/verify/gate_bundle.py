"""Bundles of memory gates: a base, gates for it, and cases recorded from other evaluations of the same equations.

`base/` is a checkpoint, `gate.json` names a gate and its rules. Each case of `cases.json` states its rules, a file of
gate tensors, a prompt and the tokens that follow it; `expected.safetensors` holds its tensors as `<case>.<what>`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from edgeflow.lab.verify.bundle import CASES_FILE, BundleEntry, RecordedCase, read_cases
from edgeflow.lab.verify.comparison import FEATURE_TOLERANCE, CheckResult, Results, compare, mismatches
from edgeflow.models.llama import LlamaConfig
from edgeflow.models.memory_gate import JSON_FILE, GateRules, MemoryGate, gate_header, read_layers
from edgeflow_client.errors import CheckpointError, ConfigError

BASE = "base"
MEMORY_TOLERANCE = 1e-5  # relative to the largest entry of M or z
MEMORY = ("M", "z", "M_end", "z_end", "segment_M.last_layer", "segment_z.last_layer")
NAMES = {
    "logits": "logits of the prompt",
    "hidden": "hidden states",
    "step_logits": "logits of every step",
    "step_logits_last": "logits of the last step",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GateCase:
    """A recorded case."""

    name: str
    gate: MemoryGate
    """Its tensors with the rules of the case."""
    ids: list[int]
    greedy_ids: list[int]
    long_route: bool
    segments: int
    """Number of segments folded after the prompt."""
    residual: int | None
    """Number of tokens left then, None for a short prompt."""
    folds_at: list[int]
    """Known tokens at each fold while decoding."""
    segments_at_end: int
    """Number of segments folded when the last token is sampled."""
    margin: float | None
    """The smallest difference of the two largest logits over all sampled tokens."""
    without_memory: BundleEntry | None
    against_default: BundleEntry | None
    """Both: the recorded effect of leaving the memory out, or of using the rules of gate.json."""
    tensors: Mapping[str, Tensor]


def is_gate_bundle(directory: Path) -> bool:
    """True for a directory with a gate and a base."""
    return (directory / JSON_FILE).is_file() and (directory / BASE).is_dir()


def read_gate_bundle(directory: Path, config: LlamaConfig, device: torch.device) -> tuple[MemoryGate, list[GateCase]]:
    """The gate of gate.json, and all cases; CheckpointError names the case and the wrong entry.

    config: of the base.
    """
    reader = _GateReader(directory, config, device, gate_header(directory, config).read(config, torch.float32, device))
    return reader.gate, [reader.case(each) for each in read_cases(directory)]


@dataclass(frozen=True, slots=True)
class _GateReader:
    """Reads the tensors of a gate's bundle."""

    directory: Path
    config: LlamaConfig
    device: torch.device
    gate: MemoryGate
    """The gate of gate.json."""

    def case(self, recorded: RecordedCase) -> GateCase:
        entry, where = recorded.entry, f"{self.directory / CASES_FILE} case {recorded.name}"
        ids, greedy_ids, route = entry.ids("input_ids"), entry.ids("greedy_ids"), entry.text("route")
        vocab, residual = self.config.vocab_size, entry.optional_whole_number("residual_after_prefill")
        if route not in ("short", "long"):
            raise CheckpointError(f"{where}: route must be short or long, got {route!r}")
        if not greedy_ids or not ids or not all(0 <= token < vocab for token in (*ids, *greedy_ids)):
            raise CheckpointError(f"{where}: input_ids and greedy_ids must be ids from 0 to {vocab - 1}")
        return GateCase(
            name=recorded.name,
            gate=self._own_gate(entry, where),
            ids=ids,
            greedy_ids=greedy_ids,
            long_route=route == "long",
            segments=entry.whole_number("segments_after_prefill"),
            residual=residual,
            folds_at=entry.ids("decode_folds_at"),
            segments_at_end=entry.whole_number("segments_at_end"),
            margin=entry.optional_number("min_margin"),
            without_memory=entry.optional_entry("without_memory"),
            against_default=entry.optional_entry("against_default"),
            tensors=recorded.tensors,
        )

    def _own_gate(self, entry: BundleEntry, where: str) -> MemoryGate:
        """The tensors that a case names with the rules that it states, which override those of gate.json."""
        name, options = entry.text("gate_file"), entry.optional_entry("options")
        if Path(name).name != name or not (self.directory / name).is_file():
            raise CheckpointError(f"{where}: gate_file must be a file beside {CASES_FILE}, got {name!r}")
        layers = read_layers(self.directory / name, self.config, torch.float32, self.device)
        own, stated = self.gate.rules.to_json(), {} if options is None else options.values()
        if unknown := sorted(stated.keys() - own.keys()):
            raise CheckpointError(f"{where}: options: unknown {unknown[0]!r}, known are {', '.join(own)}")
        try:
            rules = GateRules.of_json({**own, **stated})
        except ConfigError as error:
            raise CheckpointError(f"{where}: options: {error}") from error
        return MemoryGate(rules=rules, layers=layers, mlp_hidden=layers[0].b1.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class RecordedSteps:
    """The steps of a run."""

    tokens: list[int]
    """Greedy tokens."""
    logits: list[Tensor]
    """[V]: logits of each step, the prompt's first."""
    folds_at: list[int]
    """Known tokens at each fold after the prompt."""
    segments: int
    """Number of segments folded when the last token was sampled."""


@dataclass(frozen=True, slots=True, eq=False)
class GateRun:
    """The computed values of one case."""

    segments: int
    """Number of segments folded after the prompt."""
    decoded: RecordedSteps | None
    """None if only the prompt was run."""
    tensors: Mapping[str, Tensor]
    """The known tensors by their names in a bundle; those of logits are derived from the steps."""


GateRunner = Callable[[Sequence[GateCase]], Sequence[GateRun]]
"""Runs cases, each with its own gate, for as many tokens as were recorded."""


def check_cases(name: str, run: GateRunner, cases: Sequence[GateCase]) -> Results:
    """Every comparison with the values of a runner.

    name: of its way of computing.
    """
    return [(name, result) for case, found in zip(cases, run(cases), strict=True) for result in check_run(case, found)]


def check_run(case: GateCase, found: GateRun, *, complete: bool = False) -> Iterator[CheckResult]:
    """Compare one case.

    complete: the run must have every recorded tensor, and one that it lacks is infinitely off.
    """
    yield CheckResult(case.name, "segments after the prompt", abs(found.segments - case.segments), 0)
    tensors = dict(found.tensors)
    steps = found.decoded
    if steps is not None:
        yield CheckResult(case.name, "greedy tokens", mismatches(steps.tokens, case.greedy_ids), 0)
        yield CheckResult(case.name, "folds after the prompt", mismatches(steps.folds_at, case.folds_at), 0)
        yield CheckResult(case.name, "segments at the end", abs(steps.segments - case.segments_at_end), 0)
        every = torch.stack(steps.logits)
        tensors |= {"logits": every[0], "step_logits": every, "step_logits_last": every[-1]}
    for name, wanted in case.tensors.items():
        if name in tensors:
            yield _compare(case.name, name, tensors[name], wanted)
        elif complete:
            yield CheckResult(case.name, NAMES.get(name, name), math.inf, FEATURE_TOLERANCE)


def _compare(case: str, name: str, found: Tensor, wanted: Tensor) -> CheckResult:
    """Compare one tensor; memory relative to its largest entry."""
    largest = wanted.abs().max().item() if name in MEMORY and wanted.numel() else 0.0
    if largest:
        return compare(case, name, found / largest, wanted / largest, MEMORY_TOLERANCE)
    return compare(case, NAMES.get(name, name), found, wanted, FEATURE_TOLERANCE)
