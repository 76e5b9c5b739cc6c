"""How far a quantised policy is from the float one on held-out frames: its action tokens, or its chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from edgeflow.lab.progress import Report
from edgeflow.lab.quantize.fidelity import passed_through
from edgeflow.lab.quantize.outcome import QuantisationError
from edgeflow.lab.quantize.policies.served import ActionRows
from edgeflow.lab.quantize.search.choices import BlockChoice
from edgeflow.lab.quantize.search.decoder import DecoderTensors

NEAR = 1
"""Largest distance in bins of a near token."""


@dataclass(slots=True, eq=False)
class TokenFidelity(QuantisationError):
    """Sums over the action tokens of the float policy, each given the tokens before it."""

    tokens: int = 0
    kl: float = 0.0
    """KL(float || quantised) over the action vocabulary, nats."""
    agreeing: int = 0
    """Number of tokens on which both agree."""
    near: int = 0
    """Number of tokens within one bin of the float policy's."""

    def texts(self) -> Iterator[tuple[str, str]]:
        yield "KL per action token, nats", f"{self.kl / self.tokens:.4f}"
        yield "same action token", f"{self.agreeing / self.tokens:.1%}"
        yield "within one bin", f"{self.near / self.tokens:.1%}"

    def values(self) -> dict[str, Any]:
        return {
            "kl_per_token": self.kl / self.tokens,
            "agreement": self.agreeing / self.tokens,
            "within_one_bin": self.near / self.tokens,
            "tokens": self.tokens,
        }


@dataclass(slots=True, eq=False)
class ChunkFidelity(QuantisationError):
    """The error of a quantised policy's chunks against the float policy's, both from the same noise."""

    chunk_error: float
    """Size of the difference relative to the size of the float chunks, in normalised numbers. It is computed over all
    frames together, so frames with large numbers count most.
    """
    median_error: float
    """Median of the same error per frame."""
    frames: int

    @classmethod
    def of(cls, linear: Mapping[str, float], found: Tensor, wanted: Tensor) -> ChunkFidelity:
        """The errors of chunks.

        found, wanted: chunks of the quantised and of the float policy, [n, horizon, D].
        """
        of_frames = (found - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
        return cls(linear, float((found - wanted).norm() / wanted.norm()), float(of_frames.median()), len(wanted))

    def texts(self) -> Iterator[tuple[str, str]]:
        yield "error of chunks, all frames", f"{self.chunk_error:.2%}"
        yield "error of chunks, median frame", f"{self.median_error:.2%}"

    def values(self) -> dict[str, Any]:
        return {"chunk_error": self.chunk_error, "median_error": self.median_error, "frames": self.frames}


@torch.inference_mode()
def measure_tokens(
    decoder: DecoderTensors,
    group: int,
    variants: Mapping[str, Sequence[BlockChoice]],
    rows: ActionRows,
    actions: range,
    report: Report = lambda *_: None,
) -> dict[str, TokenFidelity]:
    """The fidelity of each variant, given by the choices for its blocks; without choices, a variant is round to
    nearest.

    rows: of held-out frames. actions: the ids of action tokens.
    """
    passed = passed_through(decoder, group, variants, rows.hidden, report)
    found = {name: TokenFidelity(linear=linear) for name, linear in passed.linear.items()}
    head = decoder.read_head()
    for batch, (counted, tokens) in enumerate(zip(rows.counted, rows.tokens, strict=True)):
        wanted = head.logits(passed.floats[batch][counted])
        for name, hidden in passed.variants.items():
            _add_tokens(found[name], wanted, head.logits(hidden[batch][counted]), tokens.flatten(), actions)
    return found


def _add_tokens(fidelity: TokenFidelity, wanted: Tensor, found: Tensor, tokens: Tensor, actions: range) -> None:
    """Add the tokens of a batch: logits [n, V] of both models, and the tokens [n] of the float policy."""
    among = slice(actions.start, actions.stop)
    of_floats, of_variant = (each[:, among].log_softmax(-1) for each in (wanted, found))
    off = (found.argmax(1) - tokens).abs()
    fidelity.tokens += len(tokens)
    fidelity.kl += (of_floats.exp() * (of_floats - of_variant)).sum(dtype=torch.float64).item()
    fidelity.agreeing += int((off == 0).sum())
    fidelity.near += int((off <= NEAR).sum())
