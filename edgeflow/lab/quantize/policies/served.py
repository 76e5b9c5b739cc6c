"""A policy as it is served, in float32 on the CPU: its answers to observations, and the rows of its language model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from edgeflow.contract import Observation
from edgeflow.engine.control.engine import EngineOptions
from edgeflow.engine.control.history import prompt_of
from edgeflow.engine.control.offline import decode_serially
from edgeflow.engine.policy import LoadOptions, Placement, Policy
from edgeflow.kernels.table.implementations import REFERENCE
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.lab.openvla_policy import embed_prefill
from edgeflow.policies.family import DEFAULTS_FILE, Family
from edgeflow.text.checkpoint_json import read_json
from edgeflow_client.errors import ConfigError, InvalidArgument

RATE, ANY_RATE = "control_rate_hz", 1.0
SPREAD = 0.618  # multiples of it, without their integers, are spread evenly over 0 to 1
BATCH = 16
"""Frames of equal length that pass through a block together."""


class ServedPolicy:
    """A policy and the engine that serves it. Products with 4-bit weights are computed by the reference."""

    def __init__(self, folder: Path, family: Family, observations: Sequence[Observation]) -> None:
        """Load the policy.

        observations: all that it will be asked about; ConfigError for one that does not fit it.
        """
        table = built_in_table().forcing(linear=REFERENCE)
        placement = Placement(dtype=torch.float32, device=torch.device("cpu"), table=table)
        self.policy: Any = family.load(folder, settings_of(folder), LoadOptions()).load(placement)
        try:
            rows = max(self.policy.text_rows(each.instruction, each.state) for each in observations)
            self.prepared = prepared_frames(self.policy, observations)
        except (InvalidArgument, ValueError) as error:
            raise ConfigError(f"calibration: the recorded frames do not fit the policy: {error}") from error
        options = EngineOptions(sessions=1, text_rows=rows, table=table)
        self.engine: Any = family.prepare(self.policy, options)

    @torch.inference_mode()
    def tokens(self) -> Iterator[tuple[int, ...]]:
        """The K action tokens for each observation."""
        for decoded in decode_serially(self.engine, self.prepared):
            yield decoded.sampled.token_ids

    @torch.inference_mode()
    def chunks(self) -> Tensor:
        """The normalised chunk for each observation, without padding: [n, horizon, D]."""
        config = self.policy.config
        values: list[Any] = [each.sampled.values for each in decode_serially(self.engine, self.prepared)]
        return torch.stack([torch.from_numpy(each[0, : config.horizon, : config.action]) for each in values])

    @torch.inference_mode()
    def token_rows(self) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
        """The rows of each observation's prompt and of all its tokens but the last, [L_P + K - 1, E], and its K
        tokens.
        """
        for frame, tokens in zip(self.prepared, list(self.tokens()), strict=True):
            (prompt,) = embed_prefill(self.policy, frame.pixel_values[None], [frame.prompt_ids])
            yield torch.cat([prompt, self.policy.decoder.embed(torch.tensor(tokens[:-1]))]), tokens

    @torch.inference_mode()
    def prefix_rows(self) -> Iterator[Tensor]:
        """The rows of each observation's prefix, [L_P, E]."""
        for frame in self.prepared:
            ids = torch.tensor(frame.prompt_ids)
            (rows,) = self.policy.network.embed_prefix([frame.pixel_values], [ids], frame.state[None])
            yield rows


def prepared_frames(
    policy: Policy, observations: Sequence[Observation], indices: Sequence[int] | None = None
) -> list[Any]:
    """The inputs of the answers to observations, by default to all. Delays are spread over all that the policy takes.

    The past of an observation are those before it in the sequence that lead to it, with earlier stamps and the same
    instruction.
    """
    most_ms = policy.inputs.most_delay_ms
    chosen = range(len(observations)) if indices is None else indices
    return [
        _prepared(policy, observations[: index + 1], most_ms * (place * SPREAD % 1))
        for place, index in enumerate(chosen)
    ]


def _prepared(policy: Policy, seen: Sequence[Observation], delay_ms: float) -> Any:
    """The inputs of the answer to the last of these observations."""
    first = len(seen) - 1
    while first and seen[first - 1].stamp_ns < seen[first].stamp_ns:
        if seen[first - 1].instruction != seen[-1].instruction:
            break
        first -= 1
    return prompt_of(policy, seen[first:], delay_ms)


def settings_of(folder: Path) -> dict[str, Any]:
    """The rate of the actions if the checkpoint does not state it; it has no influence here."""
    stated = read_json(folder / DEFAULTS_FILE, required=False)
    config = read_json(folder / "config.json")
    return {RATE: ANY_RATE} if RATE not in stated and "type" in config else {}


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, eq=False)
class FrameRows:
    """Batches of frames."""

    hidden: tuple[Tensor, ...]
    """[B, L, E]: the rows that enter the first block, float32."""

    @property
    def longest(self) -> int:
        """The largest number of rows of a frame."""
        return max(each.shape[1] for each in self.hidden)


@dataclass(frozen=True, slots=True, eq=False)
class ActionRows(FrameRows):
    """Rows of frames whose answers are tokens.

    counted [B, L] bool: the rows whose outputs are sampled; tokens [B, K] int64: the float policy's tokens.
    """

    counted: tuple[Tensor, ...]
    tokens: tuple[Tensor, ...]


def action_rows(served: ServedPolicy) -> ActionRows:
    """The rows of each observation's prompt and action tokens."""
    batches = _batches([(len(rows), (rows, tokens)) for rows, tokens in served.token_rows()])
    tokens = tuple(torch.tensor([each for _, each in batch]) for batch in batches)
    hidden = tuple(torch.stack([rows for rows, _ in batch]) for batch in batches)
    return ActionRows(hidden, tuple(map(_last, hidden, tokens)), tokens)


def prefix_rows(served: ServedPolicy) -> FrameRows:
    """The rows of each observation's prefix."""
    return FrameRows(tuple(map(torch.stack, _batches([(len(rows), rows) for rows in served.prefix_rows()]))))


def _last(hidden: Tensor, tokens: Tensor) -> Tensor:
    """The last K of L rows of each frame: the output of the row before an action token decides that token."""
    counted = torch.zeros(hidden.shape[:2], dtype=torch.bool)
    counted[:, -tokens.shape[1] :] = True
    return counted


def _batches(items: Sequence[tuple[int, Item]]) -> list[list[Item]]:
    """Items grouped by length, at most BATCH per group."""
    by_length: dict[int, list[Item]] = {}
    for length, item in items:
        by_length.setdefault(length, []).append(item)
    return [alike[at : at + BATCH] for alike in by_length.values() for at in range(0, len(alike), BATCH)]
