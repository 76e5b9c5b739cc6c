"""Chat requests in shared passes, with their logits, and the prefixes that they share: for checks and measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from edgeflow.engine.chat.engine import ChatEngine
from edgeflow.engine.chat.generate import FixedPrefix, Generation
from edgeflow.engine.executor import Ticket
from edgeflow.engine.sampling.sample import Sampled
from edgeflow.models.prompt import Prompt
from edgeflow.scheduler.plan import Pass


@dataclass(frozen=True, slots=True)
class RequestStep:
    """The result of a pass for a request: tokens, or None for a chunk of its prompt; and the logits of its sampled rows
    [n, V], where kept.
    """

    sampled: Sampled[int] | None
    logits: Tensor | None


def run_pass(engine: ChatEngine, generations: Sequence[Generation], chunk: int) -> list[RequestStep]:
    """Run one pass of requests in different slots, each by a chunk of at most `chunk` rows or a token.

    Returns the results of those requests that share the pass.
    """
    planned = [each.plan.next(chunk) for each in generations]
    segments = sorted((each for each in planned if each is not None), key=lambda each: each.stage > 0)
    if not segments:
        return []
    sources = {each.plan.slot: each.source for each in generations}
    ticket = engine.launch(Pass(0, tuple(segments)), sources)
    rows = _logits(ticket)
    outcomes = {outcome.sequence: outcome for outcome in engine.collect(ticket)}
    shared = [(each, each.plan.slot) for each in generations if each.plan.slot in outcomes]
    return [RequestStep(each.commit(outcomes[slot]), rows.get(slot)) for each, slot in shared]


def _logits(ticket: Ticket[int]) -> dict[int, Tensor]:
    """The logits of the sampled rows of each sequence, where kept."""
    first, rows = 0, dict[int, Tensor]()
    for segment, samples in zip(ticket.planned.segments, ticket.shape.samples, strict=False):
        if ticket.logits is not None and samples:
            rows[segment.sequence] = ticket.logits[first : first + segment.samples]
        first += samples
    return rows


def lend(prefix: FixedPrefix, engine: ChatEngine, prompt: Prompt, slot: int) -> int:
    """Bring what `prompt` shares with a prefix into its slot; returns how many rows are known then.

    Rows that cannot be reused are computed again. In the prefix's own slot nothing moves; there the whole prefix must
    be shared, as the rest is written over.
    """
    shared, placement = min(prefix.prompt.common(prompt), len(prompt) - 1), engine.placement
    if slot == prefix.slot and not placement.shares_slots:
        raise ValueError("a prompt that folds cannot run in the prefix's slot")
    known = placement.reusable(len(prefix.prompt), shared, len(prompt))
    if slot != prefix.slot:
        engine.lend(prefix.slot, slot, known)
    elif shared < min(len(prefix.prompt), len(prompt) - 1):
        raise ValueError("a prompt that leaves the prefix cannot run in the prefix's slot")
    return known
