"""The recorded cases of an OpenVLA bundle: image, instruction, unnorm_key, expected ids and actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from edgeflow.lab.verify.recorded.bundle import RecordedCase, read_cases, read_image


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A recorded case. A quantity that is None, or has no tensor of its name, was not recorded.

    image: RGB [H, W, 3]. input_ids: text tokens, whether or not the trailing space piece is among them.
    prompt_ids: with it.
    """

    name: str
    image: NDArray[np.uint8]
    instruction: str
    unnorm_key: str | None
    input_ids: list[int] | None
    prompt_ids: list[int] | None
    action_token_ids: list[int]
    normalized_actions: list[float] | None
    actions: list[float] | None
    tensors: Mapping[str, Tensor]


def read_bundle(directory: Path) -> list[Case]:
    """Read all cases; CheckpointError names the case and the entry at fault."""
    return [_case(directory, recorded) for recorded in read_cases(directory)]


def _case(directory: Path, recorded: RecordedCase) -> Case:
    entry = recorded.entry
    return Case(
        name=recorded.name,
        image=read_image(directory / entry.text("image")),
        instruction=entry.text("instruction"),
        unnorm_key=entry.optional_text("unnorm_key"),
        input_ids=entry.optional_ids("input_ids"),
        prompt_ids=entry.optional_ids("input_ids_after_29871"),
        action_token_ids=entry.ids("action_token_ids"),
        normalized_actions=entry.optional_numbers("normalized_actions"),
        actions=entry.optional_numbers("actions"),
        tensors=recorded.tensors,
    )
