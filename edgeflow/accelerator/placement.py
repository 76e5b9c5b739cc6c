"""Where the operations of a token run, and the time of a token in each placement."""

from __future__ import annotations

from dataclasses import dataclass

from edgeflow.accelerator import constants
from edgeflow.accelerator.cycles import LinearTime, linear_time
from edgeflow.accelerator.host import head_time, layer_times
from edgeflow.accelerator.macro import MacroShape
from edgeflow.accelerator.network import LINEARS, fused_linears, head_in_macros
from edgeflow.models.llama import LlamaConfig

A53 = "A53s"
NO_HEAD = "none"
ACCELERATOR = "accelerator"


@dataclass(frozen=True, slots=True)
class Placement:
    """The operations on the accelerator; all others run on the A53s.

    linears: those of a layer. head: NO_HEAD, A53 or ACCELERATOR. paper: the paper's tokens per second, None where
    it states none.
    """

    name: str
    linears: frozenset[str]
    head: str
    paper: float | None = None


PAPER_LINEARS = frozenset(LINEARS) - {"output"}
PLACEMENTS = (
    Placement("all on the A53s, no head", frozenset(), NO_HEAD, constants.PAPER_BASELINE.value),
    Placement("all on the A53s", frozenset(), A53, constants.PAPER_BASELINE.value),
    Placement("output projection and head on the A53s", PAPER_LINEARS, A53, constants.PAPER_ACCELERATED.value),
    Placement("head on the A53s", frozenset(LINEARS), A53),
    Placement("all linears and the head on the accelerator", frozenset(LINEARS), ACCELERATOR),
)


@dataclass(frozen=True, slots=True)
class Part:
    """An operation of a layer or the head. microseconds: overlapped; in_turn: without overlap; limit: what sets it."""

    name: str
    microseconds: float
    in_turn: float
    limit: str


@dataclass(frozen=True, slots=True)
class TokenTime:
    """The time of a token in a placement. head: None where none is counted."""

    placement: Placement
    layer: tuple[Part, ...]
    layers: int
    head: Part | None

    @property
    def layer_microseconds(self) -> float:
        return sum(part.microseconds for part in self.layer)

    @property
    def milliseconds(self) -> float:
        """The time of a token."""
        return sum(time for time, _ in self._parts()) / 1e3

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return 1e3 / self.milliseconds

    @property
    def rate_in_turn(self) -> float:
        """Tokens per second if streaming and computing take turns."""
        head = self.head.in_turn if self.head else 0.0
        return 1e6 / (self.layers * sum(part.in_turn for part in self.layer) + head)

    def shares(self) -> dict[str, float]:
        """The part of the time that each limit sets, the largest first; they add up to 1."""
        total = 1e3 * self.milliseconds
        limits = dict.fromkeys(limit for _, limit in self._parts())
        shares = {limit: sum(time for time, its in self._parts() if its == limit) / total for limit in limits}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def _parts(self) -> list[tuple[float, str]]:
        """Microseconds of a token and their limit, part by part."""
        parts = [(self.layers * part.microseconds, part.limit) for part in self.layer]
        return parts + ([(self.head.microseconds, self.head.limit)] if self.head else [])


def token_time(config: LlamaConfig, group: int, placement: Placement) -> TokenTime:
    """The time of a token of this network. CheckpointError where macros cannot hold a linear."""
    linears = {
        name: linear_time(MacroShape(outputs, inputs, group, name))
        for name, (outputs, inputs) in fused_linears(config).items()
        if name in placement.linears
    }
    layer = tuple(
        _on_accelerator(name, linears[name]) if name in linears else Part(name, time, time, A53)
        for name, time in layer_times(config).items()
    )
    return TokenTime(placement, layer, config.num_hidden_layers, _head(config, group, placement))


def second_head_bytes(config: LlamaConfig, group: int) -> int:
    """Bytes of a head in macros. A tied head needs them beside the embedding, which stays in FP16."""
    return head_in_macros(config, group).nbytes


def _head(config: LlamaConfig, group: int, placement: Placement) -> Part | None:
    if placement.head == NO_HEAD:
        return None
    if placement.head == ACCELERATOR:
        return _on_accelerator("head", linear_time(head_in_macros(config, group)))
    time = head_time(config)
    return Part("head", time, time, A53)


def _on_accelerator(name: str, time: LinearTime) -> Part:
    return Part(name, time.overlapped, time.in_turn, time.limit)
