"""Action tokens to numbers and their meaning.

Published source: OpenVLA's prismatic/vla/action_tokenizer.py (bins) and `predict_action` of
prismatic/extern/hf/modeling_prismatic.py (un-normalisation).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeflow.policies.openvla.config import ActionStatistics, OpenVLAConfig
from edgeflow_client.errors import CheckpointError
from edgeflow_client.types import ActionSchema

SEVEN = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
SEVEN_UNITS = ("m", "m", "m", "rad", "rad", "rad", "fraction")


def bin_centers(bins: int) -> NDArray[np.float64]:
    """[bins - 1]: the middles between so many edges from -1 to 1, one per action token."""
    edges = np.linspace(-1.0, 1.0, bins)
    centers: NDArray[np.float64] = (edges[:-1] + edges[1:]) / 2.0
    return centers


class ActionDecoder:
    """De-tokenises over 255 bin centres and un-normalises in float64."""

    def __init__(self, config: OpenVLAConfig) -> None:
        self._centers = bin_centers(config.n_action_bins)
        self._vocab = config.action_vocab
        self._width = config.action_width
        self._statistics = config.statistics
        self._block = config.action_block

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._statistics)

    @property
    def neutral_ids(self) -> tuple[int, ...]:
        """[K] the ids of the middle bin."""
        return (self._vocab - 1 - len(self._centers) // 2,) * self._width

    def statistics(self, key: str | None) -> ActionStatistics:
        """Those of a dataset; without a key there must be exactly one."""
        if key is None:
            if len(self._statistics) != 1:
                raise CheckpointError(f"unnorm_key: choose one of {', '.join(self._statistics)}")
            return next(iter(self._statistics.values()))
        if key not in self._statistics:
            raise CheckpointError(f"unnorm_key: {key!r} is not one of {', '.join(self._statistics)}")
        return self._statistics[key]

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
