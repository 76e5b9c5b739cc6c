"""Figures of the comparison in 4 bits: rates, bytes per token, and each target beside its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.chat.figures import Bar, Round, parameters, peer_bars, token_s
from benchmarks.chat.systems import SHAPE

LEAST_GAIN = 1.25
"""Our decode rate in 4 bits over ours in 8."""
MOST_FIRST_TOKEN = 1.15
"""The time to our first token in 4 bits over that in bfloat16."""

HEAD = SHAPE["vocab_size"] * SHAPE["hidden_size"]


@dataclass(frozen=True, slots=True)
class Bits:
    """Bits per weight that a decode step reads, scales and zero points included."""

    projections: float
    head: float

    @property
    def token_bytes(self) -> float:
        """Bytes of the weights that a token reads."""
        return ((parameters() - HEAD) * self.projections + HEAD * self.head) / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRow:
    """Medians over rounds. peak_bytes: the most memory of its process."""

    system: str
    first_token_ms: float
    token_ms: float
    tokens_per_s: float
    token_mb: float
    gb_per_s: float
    peak_mb: float


def system_rows(rounds: Sequence[Round], bits: Mapping[str, Bits], peaks: Mapping[str, int]) -> list[SystemRow]:
    """One row per system."""
    rows = []
    for name in rounds[0]:
        each_token_s = median(token_s(each[name]) for each in rounds)
        read = bits[name].token_bytes
        rows.append(
            SystemRow(
                system=name,
                first_token_ms=1e3 * median(each[name].at[0] for each in rounds),
                token_ms=1e3 * each_token_s,
                tokens_per_s=1 / each_token_s,
                token_mb=read / 1e6,
                gb_per_s=read / each_token_s / 1e9,
                peak_mb=peaks[name] / 1e6,
            )
        )
    return rows


def bars(rounds: Sequence[Round], int4: str, int8: str, halves: str, peers: Sequence[str]) -> list[Bar]:
    """Targets of our 4 bits against our 8 bits, our bfloat16 and the peers; ratios are medians of ratios in a round.

    Without peers their figures are there, as not measured.
    """
    gain = median(token_s(each[int8]) / token_s(each[int4]) for each in rounds)
    first = median(each[int4].at[0] / each[halves].at[0] for each in rounds)
    found = [
        Bar("decode: our 8 bits' time / our 4 bits'", gain, least=LEAST_GAIN),
        Bar("first token: our 4 bits' time / our bfloat16's", first, most=MOST_FIRST_TOKEN),
    ]
    return found + peer_bars("4 bits", rounds, [token_s(each[int4]) for each in rounds], peers)
