"""SmolVLA with special tokens around its images, as LeRobot writes its files (tests/recorded)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from edgeflow.engine.policy import LoadOptions
from edgeflow.policies.registry import family_of
from edgeflow_client.errors import CheckpointError
from tests.oracles import RECORDED
from tests.policies.flow.tiny import STATE, TOP, WRIST, change_json
from tests.policies.flow.tiny_policies import RATE, loaded, observation

BUNDLE = RECORDED / "smolvla-special-tokens"


def test_rows_are_counted_with_the_special_tokens_and_the_absent_camera():
    """Four rows of patches and three of special tokens for each image; the absent camera has only these three."""
    policy = loaded(BUNDLE)
    for names in ((TOP, WRIST), (WRIST,)):
        frame = policy.prepare(observation(0, *names, instruction="pick", state={STATE: (0.0,) * 4}))
        with torch.inference_mode():
            (rows,) = policy.network.embed_prefix(
                [frame.pixel_values], [torch.tensor(frame.prompt_ids)], frame.state[None]
            )
        assert len(rows) == policy.network.prefix_rows(len(names), len(frame.prompt_ids))
        assert len(rows) == 7 * len(names) + 3 + len("pick\n") + 1
    assert policy.fixed_rows == 2 * 7 + 3 + 1
    with_settings = family_of(BUNDLE).load(BUNDLE, RATE, LoadOptions())
    assert with_settings.footprint(policy.dtype).positions == policy.fixed_rows + policy.sizes.step_rows


def test_special_tokens_without_an_embedding_are_rejected(tmp_path: Path):
    checkpoint = shutil.copytree(BUNDLE, tmp_path / "checkpoint")
    change_json(checkpoint / "vlm" / "tokenizer.json", lambda tokenizer: tokenizer["added_tokens"][-1].update(id=40))
    with pytest.raises(CheckpointError, match="has 40 rows, none for <fake_token_around_image> or <global-img>"):
        loaded(checkpoint)
