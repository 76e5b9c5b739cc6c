"""The time of a linear on the accelerator; where the operations of a token run, and its time in each placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from edgeflow.lab.kv260 import constants
from edgeflow.lab.kv260.macro import MacroShape
from edgeflow.lab.kv260.network import LINEARS, PAPER_MODEL, PUBLISHED, fused_linears, head_in_macros
from edgeflow.models.llama import LlamaConfig

STREAMING = "DDR streaming"
PES = "PEs"
ACTIVATIONS = "activations"
FLOAT_BITS = 32  # of an input and of a sum
A53 = "A53s"
NO_HEAD = "none"
ACCELERATOR = "accelerator"
PAPER_LINEARS = frozenset(LINEARS) - {"output"}


@dataclass(frozen=True, slots=True)
class LinearTime:
    """Microseconds of a linear for one row."""

    streaming: float
    """Streaming its macros."""
    steps: float
    """Steps of the PEs."""
    activations: float
    """Moving inputs and sums."""

    @property
    def overlapped(self) -> float:
        return max(self.streaming, self.steps) + self.activations

    @property
    def in_turn(self) -> float:
        return self.streaming + self.steps + self.activations

    @property
    def limits(self) -> dict[str, float]:
        """The microseconds due to each limit, `overlapped` in total: STREAMING or PES, and ACTIVATIONS."""
        slower = STREAMING if self.streaming >= self.steps else PES
        return {slower: max(self.streaming, self.steps), ACTIVATIONS: self.activations}


def linear_time(shape: MacroShape) -> LinearTime:
    """The time of a linear: that of the channel with most blocks, and of the memory that all channels share."""
    blocks, macros, words = shape.channel_shape(0)
    strips = blocks * macros * (32 * words // int(constants.STRIP.value))
    steps = blocks * macros * (shape.group // int(constants.PE_INPUTS.value))
    moved_bits = FLOAT_BITS * (shape.inputs + shape.outputs)
    return LinearTime(
        streaming=max(_microseconds(strips), shape.nbytes / constants.DDR.value / 1e3),
        steps=_microseconds(steps * constants.STEP_CYCLES.value),
        activations=_microseconds(moved_bits / constants.ACTIVATION_PORT.value),
    )


def _microseconds(cycles: float) -> float:
    return cycles / constants.CLOCK.value


@dataclass(frozen=True, slots=True)
class AcceleratorPlacement:
    """The operations on the accelerator; all others run on the A53s."""

    name: str
    linears: frozenset[str]
    """Linears of a layer that run on the accelerator."""
    head: str
    """NO_HEAD, A53 or ACCELERATOR."""
    paper: float | None = None
    """The paper's tokens per second, None if it does not state any."""


PLACEMENTS = (
    AcceleratorPlacement("all on the A53s, no head", frozenset(), NO_HEAD, constants.PAPER_BASELINE.value),
    AcceleratorPlacement("all on the A53s", frozenset(), A53, constants.PAPER_BASELINE.value),
    AcceleratorPlacement(
        "output projection and head on the A53s", PAPER_LINEARS, A53, constants.PAPER_ACCELERATED.value
    ),
    AcceleratorPlacement("head on the A53s", frozenset(LINEARS), A53),
    AcceleratorPlacement("all linears and the head on the accelerator", frozenset(LINEARS), ACCELERATOR),
)


@dataclass(frozen=True, slots=True)
class PlacedOperation:
    """An operation of a layer or the head."""

    name: str
    in_turn: float
    """Microseconds if nothing overlaps."""
    limits: Mapping[str, float]
    """Microseconds with overlap, by the limit that causes them."""

    @property
    def microseconds(self) -> float:
        return sum(self.limits.values())


@dataclass(frozen=True, slots=True)
class TokenTime:
    """The time of a token in a placement."""

    placement: AcceleratorPlacement
    layer: tuple[PlacedOperation, ...]
    layers: int
    head: PlacedOperation | None
    """None if no head is counted."""

    @property
    def layer_microseconds(self) -> float:
        return sum(part.microseconds for part in self.layer)

    @property
    def milliseconds(self) -> float:
        """The time of a token."""
        head = self.head.microseconds if self.head else 0.0
        return (self.layers * self.layer_microseconds + head) / 1e3

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
        """The share of each limit in the time, the largest first; they add up to 1."""
        parts = [(self.layers, part) for part in self.layer] + ([(1, self.head)] if self.head else [])
        total: Counter[str] = Counter()
        for count, part in parts:
            total.update({limit: count * time for limit, time in part.limits.items()})
        return {limit: time / (1e3 * self.milliseconds) for limit, time in total.most_common()}


def token_time(config: LlamaConfig, group: int, placement: AcceleratorPlacement) -> TokenTime:
    """The time of a token of this network. CheckpointError if macros cannot hold a linear."""
    linears = {
        name: linear_time(MacroShape(outputs, inputs, group, name))
        for name, (outputs, inputs) in fused_linears(config).items()
        if name in placement.linears
    }
    layer = tuple(
        _on_accelerator(name, linears[name]) if name in linears else _on_a53s(name, time)
        for name, time in layer_times(config).items()
    )
    return TokenTime(placement, layer, config.num_hidden_layers, _head(config, group, placement))


def _head(config: LlamaConfig, group: int, placement: AcceleratorPlacement) -> PlacedOperation | None:
    if placement.head == NO_HEAD:
        return None
    if placement.head == ACCELERATOR:
        return _on_accelerator("head", linear_time(head_in_macros(config, group)))
    return _on_a53s("head", head_time(config))


def _on_a53s(name: str, time: float) -> PlacedOperation:
    return PlacedOperation(name, time, {A53: time})


def _on_accelerator(name: str, time: LinearTime) -> PlacedOperation:
    return PlacedOperation(name, time.in_turn, time.limits)


def layer_times(config: LlamaConfig) -> dict[str, float]:
    """Microseconds of each row of Table I in a layer of this network."""
    here, there = _sizes(config), _sizes(PUBLISHED[PAPER_MODEL])
    return {name: constant.value * here[name] / there[name] for name, constant in constants.TABLE_I.items()}


def head_time(config: LlamaConfig) -> float:
    """Microseconds of the head."""
    return config.vocab_size * config.hidden_size / (1e3 * mac_rate())


def mac_rate() -> float:
    """GMAC/s of the A53s that Table I implies for gate, up and down."""
    sizes = _sizes(PUBLISHED[PAPER_MODEL])
    time = sum(constants.TABLE_I[name].value for name in ("gate_up", "down"))
    return (sizes["gate_up"] + sizes["down"]) / time / 1e3


def _sizes(config: LlamaConfig) -> dict[str, int]:
    """The size to which each row of the table is proportional: multiply-accumulates, or elements."""
    products = {name: outputs * inputs for name, (outputs, inputs) in fused_linears(config).items()}
    qkv_width = config.q_width + 2 * config.kv_width
    return {
        **products,
        "embedding": config.hidden_size,
        "qkv_bias": qkv_width if config.attention_bias else 0,
        "attention": config.q_width,
        "rope": config.q_width + config.kv_width,
        "rms_norm": config.hidden_size,
        "silu": config.intermediate_size,
    }
