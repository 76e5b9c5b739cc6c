"""The naive twins of a memory gate on recorded cases: text by text through Algorithm 1, and whole texts at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.lab.training.gate.whole import run_whole
from edgeflow.lab.verify.gate_bundle import GateCase
from edgeflow.lab.verify.gate_runs import Decoded, GateRun
from edgeflow.lab.verify.gate_streaming import Memory, Pass, StreamingTwin, greedy
from edgeflow.models.memory_gate import MemoryGate


def run_streaming(case: GateCase, base: PlainBase, gate: MemoryGate, *, without_memory: bool = False) -> GateRun:
    """The case as Algorithm 1 has it, with all that a bundle may hold. gate: that of the case, or another one."""
    twin = StreamingTwin(base, gate, without_memory=without_memory)
    first = twin.prefill(case.ids)
    folds = list(twin.memories)
    tensors = {"hidden": first.hidden, **_seen(first), **_memory(folds)}
    if folds:
        tensors["segment_M.last_layer"] = torch.stack([each.sums[-1] for each in folds])
        tensors["segment_z.last_layer"] = torch.stack([each.norms[-1] for each in folds])
    tokens, passes = greedy(twin, case.ids, len(case.greedy_ids))
    tensors |= _memory(twin.memories, "_end")
    decoded = Decoded(tokens, [each.logits for each in passes], twin.folds_at, twin.folded)
    return GateRun(len(folds), decoded, tensors)


def run_forced(case: GateCase, base: PlainBase, gate: MemoryGate) -> list[Tensor]:
    """Logits [V] of each step with another gate, given the recorded tokens."""
    twin = StreamingTwin(base, gate)
    return [twin.prefill(case.ids).logits, *(twin.step(token).logits for token in case.greedy_ids[:-1])]


def run_at_once(case: GateCase, base: PlainBase) -> GateRun:
    """The prompt as one text and, where the state follows from the known tokens alone, each step as another."""
    rules = case.gate.rules
    tensors = _at_once(case.ids, base, case.gate)
    segments = rules.segments(len(case.ids))
    if rules.fold != "recompute":
        return GateRun(segments, None, {"logits": base.logits(tensors["hidden"][-1]), **tensors})
    texts = [[*case.ids, *case.greedy_ids[:count]] for count in range(len(case.greedy_ids))]
    states = [_at_once(ids, base, case.gate) for ids in texts]
    logits = [base.logits(each["hidden"][-1]) for each in states]
    counts = [rules.segments(len(ids)) for ids in texts]
    folds = [len(ids) for ids, old, new in zip(texts[1:], counts, counts[1:], strict=False) if new > old]
    ends = {f"{name}_end": states[-1][name] for name in ("M", "z") if name in states[-1]}
    decoded = Decoded([int(each.argmax()) for each in logits], logits, folds, counts[-1])
    return GateRun(segments, decoded, tensors | ends)


def _at_once(ids: Sequence[int], base: PlainBase, gate: MemoryGate) -> dict[str, Tensor]:
    """The tensors that a bundle may hold of a text's last pass."""
    segments = gate.rules.segments(len(ids))
    found = run_whole(base, gate, torch.tensor([ids], device=base.norm.device), segments, watch=True)
    if not segments:
        return {"hidden": found.plain[0]}
    rest = len(ids) - gate.rules.sink - segments * gate.rules.segment
    sums = torch.stack([each.sums[0] for each in found.seen])
    tensors = {"hidden": found.gated[0, -rest:], "M": sums[:, :, -1, :, :-1], "z": sums[:, :, -1, :, -1]}
    for layer, seen in enumerate(found.seen):
        tensors |= {f"a_mem.{layer}": seen.read[0, :, -rest:], f"a_com.{layer}": seen.mixed[0, :, -rest:]}
    last = sums[-1].transpose(0, 1)  # [N, KH, D, D + 1]
    return tensors | {"segment_M.last_layer": last[..., :-1], "segment_z.last_layer": last[..., -1]}


def _seen(found: Pass) -> dict[str, Tensor]:
    reads = {f"a_mem.{layer}": tensor for layer, tensor in enumerate(found.a_mem)}
    return reads | {f"a_com.{layer}": tensor for layer, tensor in enumerate(found.a_com)}


def _memory(folds: Sequence[Memory], end: str = "") -> dict[str, Tensor]:
    return {f"M{end}": folds[-1].sums, f"z{end}": folds[-1].norms} if folds else {}
