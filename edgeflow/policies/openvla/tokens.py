"""Instructions to token ids, and action tokens to numbers and their meaning.

Published source: `get_vla_action` of OpenVLA's experiments/robot/openvla_utils.py (the prompts), `predict_action` of
prismatic/extern/hf/modeling_prismatic.py (the token appended to them, un-normalisation) and
prismatic/vla/action_tokenizer.py (bins).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgeflow.policies.openvla.config import ActionStatistics, OpenVLAConfig
from edgeflow_client.errors import CheckpointError
from edgeflow_client.types import ActionSchema

_PROMPT = "In: What action should the robot take to {}?\nOut:"
_VICUNA_PROMPT = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions. "
    "USER: What action should the robot take to {}? ASSISTANT:"
)
_SPACE_PIECE = "▁"  # 29871 in Llama-2's vocabulary; training text went on with a space after the prompt
_BOS = "<s>"
Statistics = TypeVar("Statistics")


def prompt_text(instruction: str, *, vicuna: bool) -> str:
    """The prompt; the instruction is lower-cased as in training. vicuna: the prompt of the first release."""
    return (_VICUNA_PROMPT if vicuna else _PROMPT).format(instruction.lower())


class Prompter:
    """Builds the prompt a checkpoint was trained with."""

    def __init__(self, directory: Path, *, vicuna: bool) -> None:
        path = directory / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"{path} is missing or not a tokenizer: copy the checkpoint again") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._vicuna = vicuna
        bos, space = (self._tokenizer.token_to_id(piece) for piece in (_BOS, _SPACE_PIECE))
        if bos is None or space is None:
            raise CheckpointError(f"{path} lacks the piece {_BOS if bos is None else _SPACE_PIECE!r}")
        self._bos, self._space = bos, space

    def ids(self, instruction: str) -> tuple[int, ...]:
        """BOS, the prompt, and the trailing space piece."""
        ids = self._tokenizer.encode(prompt_text(instruction, vicuna=self._vicuna)).ids
        if ids[:1] != [self._bos]:
            ids = [self._bos, *ids]
        return tuple(ids) if ids[-1] == self._space else (*ids, self._space)


SEVEN = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
SEVEN_UNITS = ("m", "m", "m", "rad", "rad", "rad", "fraction")


def bin_centers(bins: int) -> NDArray[np.float64]:
    """[bins - 1]: the middles between so many edges from -1 to 1, one per action token."""
    edges = np.linspace(-1.0, 1.0, bins)
    centers: NDArray[np.float64] = (edges[:-1] + edges[1:]) / 2.0
    return centers


def of_dataset(statistics: Mapping[str, Statistics], key: str | None) -> Statistics:
    """The entry of a dataset; without a key there must be exactly one. CheckpointError names all."""
    if key is None and len(statistics) == 1:
        return next(iter(statistics.values()))
    if key is None or key not in statistics:
        found = "choose" if key is None else f"{key!r} is not"
        raise CheckpointError(f"unnorm_key: {found} one of {', '.join(statistics)}")
    return statistics[key]


class ActionDecoder:
    """De-tokenises over 255 bin centres and un-normalises in float64."""

    def __init__(self, config: OpenVLAConfig) -> None:
        self._centers = bin_centers(config.n_action_bins)
        self._vocab = config.action_vocab
        self._width = config.action_width
        self._statistics = config.statistics
        self._block = config.action_block

    @property
    def neutral_ids(self) -> tuple[int, ...]:
        """[K] the ids of the middle bin."""
        return (self._vocab - 1 - len(self._centers) // 2,) * self._width

    def statistics(self, key: str | None) -> ActionStatistics:
        """The statistics of a dataset; without a key there must be exactly one."""
        return of_dataset(self._statistics, key)

    def normalized(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """Bin centres [K] in -1 .. 1; ids that are not actions clip to the last bin."""
        bins = np.clip(self._vocab - np.asarray(token_ids) - 1, 0, len(self._centers) - 1)
        centers: NDArray[np.float64] = self._centers[bins]
        return centers

    def unnormalized(self, values: NDArray[np.float64], key: str | None) -> NDArray[np.float64]:
        """[K] in the units of the dataset; of a narrower dataset as many as its actions have."""
        stats = self.statistics(key)
        low, high = np.asarray(stats.q01), np.asarray(stats.q99)
        values = values[: len(low)]
        return np.where(stats.mask, 0.5 * (values + 1.0) * (high - low) + low, values)

    def schema(self, key: str | None) -> ActionSchema:
        """Names and units from the checkpoint where it has them; limits are what the bins can express."""
        count = len(self.statistics(key).q01)
        ends = [self.unnormalized(np.full(count, self._centers[end]), key) for end in (0, -1)]
        seven = count == len(SEVEN)
        names = self._block.get("names", SEVEN if seven else [f"a{index}" for index in range(count)])
        units = self._block.get("units", SEVEN_UNITS if seven else ["1"] * count)
        relative = self._block.get("relative", [seven and index < count - 1 for index in range(count)])
        try:
            return ActionSchema(
                names=tuple(names),
                units=tuple(units),
                low=tuple(np.minimum(*ends).tolist()),
                high=tuple(np.maximum(*ends).tolist()),
                relative=tuple(map(bool, relative)),
                frame=self._block.get("frame", "base"),
                rotation=self._block.get("rotation", "euler_xyz"),
                control_rate_hz=float(self._block.get("control_rate_hz", 0.0)),
                whole_way=bool(self._block.get("whole_way", False)),
            )
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"config.json edgeflow_action: {error}") from error
