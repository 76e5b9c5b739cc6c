"""Token ids to numbers: the published table, un-normalisation with and without a mask, the schema."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from edgeflow.engine.policy import LoadOptions, Placement
from edgeflow.kernels.table.operator_table import built_in_table
from edgeflow.models.llama import LlamaConfig
from edgeflow.policies.openvla.config import ActionStatistics, ImageConfig, OpenVLAConfig, load_config
from edgeflow.policies.openvla.family import OPENVLA
from edgeflow.policies.openvla.tokens import ActionDecoder
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.tiny_checkpoint import write_checkpoint

NARROW = ActionStatistics((-1.0, 0.0, 5.0), (1.0, 4.0, 5.0), (True, True, True))
MASKED = ActionStatistics((-1.0,) * 7, (3.0,) * 7, (True,) * 6 + (False,))


def actions(statistics: dict[str, ActionStatistics], **block: object) -> ActionDecoder:
    image = ImageConfig(28, "resize-naive", ())
    return ActionDecoder(
        OpenVLAConfig(
            text=LlamaConfig(),
            image=image,
            tower_heads=(),
            action_vocab=32000,
            n_action_bins=256,
            statistics=statistics,
            action_block=block,
            vicuna_prompt=False,
        )
    )


@pytest.mark.parametrize(
    ("token_id", "value"),
    [
        (31999, -0.99607843), (31998, -0.98823529), (31872, 0.0), (31745, 0.99607843), (31744, 0.99607843),
        (31743, 0.99607843), (2, 0.99607843), (0, 0.99607843), (32000, -0.99607843), (32063, -0.99607843),
    ],
)  # fmt: skip
def test_published_table(token_id: int, value: float):
    """Ids that are no actions clip to the nearest end."""
    assert actions({"a": NARROW}).normalized([token_id])[0] == pytest.approx(value, abs=1e-8)


def test_every_bin_survives_the_published_encoder():
    bins = np.linspace(-1.0, 1.0, 256)
    centers = actions({"a": NARROW}).normalized(range(31999, 31744, -1))
    assert [32000 - int(np.digitize(value, bins)) for value in centers] == list(range(31999, 31744, -1))


def test_unnormalisation_in_float64():
    values = actions({"a": NARROW}).unnormalized(np.array([-1.0, 0.0, 0.3]), None)
    assert values.dtype == np.float64 and values.tolist() == [-1.0, 2.0, 5.0]


def test_masked_dimensions_stay_as_they_are():
    values = actions({"a": MASKED}).unnormalized(np.full(7, 0.5), "a")
    assert values.tolist() == [2.0] * 6 + [0.5]


def test_a_key_is_needed_where_there_are_several():
    decoder = actions({"bridge": MASKED, "fractal": NARROW})
    with pytest.raises(CheckpointError, match="choose one of bridge, fractal"):
        decoder.statistics(None)
    with pytest.raises(CheckpointError, match="'other' is not one of bridge, fractal"):
        decoder.statistics("other")
    assert decoder.statistics("fractal") is NARROW
    assert actions({"bridge": MASKED}).statistics(None) is MASKED


def test_a_narrower_dataset_takes_the_first_tokens():
    values = np.linspace(-1, 1, 7)
    decoder = actions({"wide": MASKED, "narrow": NARROW})
    assert (
        decoder.unnormalized(values, "narrow").tolist()
        == actions({"a": NARROW}).unnormalized(values[:3], None).tolist()
    )
    assert len(decoder.schema("narrow").names) == 3 and len(decoder.schema("wide").names) == 7


def test_schema_of_seven_numbers():
    schema = actions({"a": MASKED}).schema(None)
    assert schema.names == ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
    assert schema.relative == (True,) * 6 + (False,)
    assert schema.low[0] == pytest.approx(-1 + 2 * (1 - 254.5 / 255.5), abs=2e-2) and schema.high[0] < 3.0
    assert (schema.low[6], schema.high[6]) == pytest.approx((-0.99607843, 0.99607843))
    low, high = actions({"a": MASKED}).unnormalized(np.full(7, -0.99607843), None), schema.high
    assert schema.low == pytest.approx(tuple(low.tolist())) and all(map(float.__gt__, high, schema.low))


def test_schema_of_other_widths_and_of_a_reversed_range():
    reversed_range = ActionStatistics((1.0, 0.0), (-1.0, 2.0), (True, True))
    schema = actions({"a": reversed_range}).schema(None)
    assert len(set(schema.names)) == 2 and schema.relative == (False, False)
    assert all(low < high for low, high in zip(schema.low, schema.high, strict=True))


def test_the_checkpoint_may_name_its_action():
    block = {"names": ["dx", "dy", "grip"], "units": ["m", "m", "1"], "relative": [True, True, False], "frame": "tool"}
    schema = actions({"a": NARROW}, **block, rotation="rotvec", control_rate_hz=5).schema(None)
    assert (schema.names, schema.units) == (("dx", "dy", "grip"), ("m", "m", "1"))
    assert (schema.relative, schema.frame, schema.rotation) == ((True, True, False), "tool", "rotvec")
    assert (schema.control_rate_hz, actions({"a": NARROW}, **block).schema(None).control_rate_hz) == (5.0, 0.0)


@pytest.mark.parametrize(
    "block",
    [
        {"names": ["only one"]},
        {"frame": "moon"},
        {"rotation": "quaternion"},
        *({"control_rate_hz": rate} for rate in (-1, math.inf, math.nan, "fast", None)),
    ],
)
def test_a_wrong_action_block_is_reported(block: dict[str, object]):
    with pytest.raises(CheckpointError, match="edgeflow_action"):
        actions({"a": NARROW}, **block).schema(None)


@pytest.mark.parametrize("block", [{}, {"edgeflow_action": {"whole_way": True}}])
def test_the_configuration_states_the_control_rate_of_a_checkpoint(tmp_path: Path, block: dict):
    directory = write_checkpoint(tmp_path / "tiny", **block)
    stated = ActionDecoder(load_config(directory)).schema(None)
    assert (stated.control_rate_hz, stated.whole_way) == (0.0, bool(block))
    published = OPENVLA.load(directory, {"control_rate_hz": 5}, LoadOptions(center_crop=False))
    policy = published.load(Placement(dtype=torch.float32, device=torch.device("cpu"), table=built_in_table()))
    schema = policy.action_schema(None)
    assert (schema.control_rate_hz, schema.whole_way) == (5.0, False)


@pytest.mark.parametrize("rate_hz", [-1, 1001.0, True, "5"])
def test_an_invalid_control_rate_is_rejected_by_name(tmp_path: Path, rate_hz: object):
    with pytest.raises(ConfigError, match=r"^policy\.control_rate_hz: must be 0 \(not known\) to 1000 Hz, got"):
        OPENVLA.check(tmp_path, {"control_rate_hz": rate_hz})
