"""Checkpoints as they are published: what lacks is said at once, and with it they are accepted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from edgeflow.engine.policy import LoadOptions
from edgeflow.policies.registry import family_of
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.policies.flow.tiny import tokenizer
from tests.policies.flow.tiny_policies import RATE
from tests.policies.published import TOKENIZERS, TOWERS, change, write

BEFORE, AFTER = "policy_preprocessor.json", "policy_postprocessor.json"
RATE_MISSING = "policy.control_rate_hz: is missing; the checkpoint does not state it"
BASE: dict[str, Any] = {
    "load_vlm_weights": True, "prefix_length": 0, "num_expert_layers": 0, "pad_language_to": "max_length",
    "optimizer_grad_clip_norm": 10,
}  # fmt: skip
"""What the published SmolVLA has other than the defaults."""


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizer_rate_and_weights_are_missed_in_one_message(tmp_path: Path, name: str):
    directory, folder = write(tmp_path, name), TOKENIZERS[name]
    family = family_of(directory)
    (named,) = family.named_files(directory)
    assert named.folder == folder
    (directory / "model.safetensors").unlink()
    with pytest.raises(CheckpointError) as caught:
        family.check(directory, {})
    problems = (
        f"no tokenizer.json of {named.repository}, which its pipeline names: run `edgeflow pull` with this model, "
        f"which fetches it, or put that tokenizer into {directory / folder}",
        "has neither model.safetensors nor model.safetensors.index.json",
        RATE_MISSING,
    )
    assert [each in caught.value.text for each in problems] == [True] * 3
    write(tmp_path, name)
    (directory / folder).mkdir()
    tokenizer(bos=True).save(str(directory / folder / "tokenizer.json"))
    assert not family.named_files(directory)
    family.check(directory, family.example["policy"])


def test_act_lacks_its_rate_alone(tmp_path: Path):
    directory = write(tmp_path, "act")
    with pytest.raises(ConfigError, match=f"^{re.escape(RATE_MISSING)}"):
        family_of(directory).check(directory, {})
    family_of(directory).check(directory, family_of(directory).example["policy"])


@pytest.mark.parametrize("name", ["smolvla", "act"])
def test_older_layouts_are_converted_by_a_line_of_lerobot(tmp_path: Path, name: str):
    """Their statistics are tensors of the model, normalize_inputs.buffer_…, and there are no pipelines."""
    directory = write(tmp_path, name)
    for file in (BEFORE, AFTER):
        (directory / file).unlink()
    command = "python -m lerobot.processor.migrate_policy_normalization --pretrained-path"
    with pytest.raises(CheckpointError, match=f"`{command} {directory} --output-dir .*; {re.escape(RATE_MISSING)}"):
        family_of(directory).check(directory, {})


def test_the_base_of_smolvla_has_statistics_of_no_robot(tmp_path: Path):
    directory = write(tmp_path, "smolvla", prefix="so100.buffer.")
    change(directory, "config.json", lambda config: config.update(BASE))
    with pytest.raises(CheckpointError) as caught:
        family_of(directory).check(directory, RATE)
    for text in ("for each of the data sets so100", "which its pipeline names: run `edgeflow pull`"):
        assert text in caught.value.text


def test_openvla_lacks_nothing_but_files(tmp_path: Path):
    directory = write(tmp_path, "openvla")
    family = family_of(directory)
    with pytest.raises(CheckpointError, match=r"has no preprocessor_config\.json and no tokenizer\.json"):
        family.check(directory, {})
    (directory / "preprocessor_config.json").write_text(json.dumps(TOWERS))
    tokenizer(bos=True).save(str(directory / "tokenizer.json"))
    family.check(directory, {})
    published = family.load(directory, family.example["policy"], LoadOptions())
    assert family.example["unnorm_key"] in published.unnorm_keys == ("bridge_orig", "fractal20220817_data")
