"""Bytes of a network on the KV260, and the networks that the board and the design cannot hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from edgeflow.lab.kv260 import constants
from edgeflow.lab.kv260.file_plan import planned
from edgeflow.lab.kv260.macro import MacroShape
from edgeflow.lab.kv260.network import gemm_shapes_of, head_in_macros, layer_linears, tensor_shapes_of
from edgeflow.models.llama import LlamaConfig
from edgeflow_client.errors import CheckpointError

MIB = 1 << 20
WORDS = ("qweight", "qzeros")  # tensors of 32 bits
FLOAT_BYTES = 4  # of a key or value


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes of all weights: in FP16, as an AutoAWQ file (tensors without the header), and as a macro file (its
    binary).
    """

    fp16: int
    autoawq: int
    macro: int


@dataclass(frozen=True, slots=True)
class BoardMemory:
    """Bytes of the board's memory that a network takes, in the placement that needs most."""

    weights: int
    """Weights of the macro file, including the embedding."""
    head: int
    """A copy of the head in macros, 0 if it replaces the one in FP16."""
    kv: int
    """Keys and values in FP32."""
    host: int
    """The operating system and the program."""

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        return (
            f"{self.total / MIB:,.0f} MiB ({self.weights / MIB:,.0f} of the macro file with embedding, "
            f"{self.head / MIB:,.0f} of a second head, {self.kv / MIB:,.0f} of keys and values, "
            f"{self.host / MIB:,.0f} for the operating system and the program)"
        )


def sizes(config: LlamaConfig, group: int) -> WeightBytes:
    """The bytes, computed from the configuration, with all linears of the layers in 4 bits."""
    shapes = gemm_shapes_of(config, group)
    return WeightBytes(
        fp16=sum(2 * math.prod(shape) for _, shape in tensor_shapes_of(config)),
        autoawq=sum((4 if name.endswith(WORDS) else 2) * math.prod(shape) for name, shape in shapes.items()),
        macro=planned(shapes).nbytes,
    )


def second_head_bytes(config: LlamaConfig, group: int) -> int:
    """Bytes of a head in macros. A tied head needs them in addition to the embedding, which stays in FP16."""
    return head_in_macros(config, group).nbytes


def memory_of(config: LlamaConfig, group: int) -> BoardMemory:
    """The memory, computed from the configuration."""
    return BoardMemory(
        weights=sizes(config, group).macro,
        head=second_head_bytes(config, group) if config.tie_word_embeddings else 0,
        kv=positions(config) * config.num_hidden_layers * 2 * config.kv_width * FLOAT_BYTES,
        host=int(constants.HOST_MEMORY.value) * MIB,
    )


def positions(config: LlamaConfig) -> int:
    """Number of positions whose keys and values are counted."""
    return min(int(constants.POSITIONS.value), config.max_position_embeddings)


def check_fits(model: str, config: LlamaConfig, group: int) -> None:
    """Raise CheckpointError if macros or the buffer of activations cannot hold a linear, or the memory the network.

    model: its name, for messages.
    """
    most = int(constants.ACTIVATIONS.value)
    for name, (outputs, inputs) in layer_linears(config).items():
        where = f"{model}: {name}"
        if inputs > most:
            raise CheckpointError(
                f"{where}: expected at most {most} inputs, which the accelerator's buffer of activations holds, "
                f"found {inputs}: choose a model with narrower layers"
            )
        try:
            MacroShape(outputs, inputs, group, where)
        except CheckpointError as error:
            advice = "another --group or model" if inputs % group else "another model"
            raise CheckpointError(f"{error}: choose {advice}") from error
    needed, limit = memory_of(config, group), int(constants.MEMORY.value) * MIB
    if needed.total > limit:
        raise CheckpointError(
            f"{model}: expected at most the {limit / MIB:,.0f} MiB of memory of the KV260, found {needed}: choose a "
            "smaller model"
        )
