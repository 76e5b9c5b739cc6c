"""Files of recorded frames: what is written is read back, and what does not fit is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from edgeflow.lab.quantize.policies.frames import FRAMES, RecordedFrame, chosen, read_frames, write_frames
from edgeflow_client.errors import ConfigError
from tests.lab.quantize.policies.cases import observations, recorded

FACTS = {"episode": 0, "instruction": "lift it", "held_out": False}
PIXELS = torch.zeros(4, 6, 3, dtype=torch.uint8)


def test_frames_are_read_as_they_were_written(tmp_path: Path):
    frames = recorded("smolvla", 3, 2)
    write_frames(tmp_path / "frames.safetensors", frames)
    assert read_frames(tmp_path / "frames.safetensors") == frames


@pytest.mark.parametrize(
    ("tensors", "facts", "named"),
    [
        ({"0.image.top": PIXELS.float()}, [FACTS], r"0\.image\.top is F32 \[4, 6, 3\], expected U8"),
        ({"0.image.top": PIXELS[:, :, :1]}, [FACTS], r"0\.image\.top is U8 \[4, 6, 1\]"),
        ({"0.image.top": PIXELS.new_zeros(4097, 1, 3)}, [FACTS], "at most 4096"),
        ({"0.state.arm": torch.zeros(1025)}, [FACTS], r"0\.state\.arm is F32 \[1025\], expected .* at most 1024"),
        ({"1.image.top": PIXELS}, [FACTS], r"'1\.image\.top' is not one of frames 0 to 0"),
        ({"0.depth.top": PIXELS}, [FACTS], r"'0\.depth\.top'"),
        ({"0.image.top": PIXELS}, [{**FACTS, "episode": "first"}], "frames must be a JSON list"),
        ({"0.image.top": PIXELS}, [FACTS] * 4097, "at most 4096 objects"),
        ({"0.image.top": PIXELS}, None, "frames must be a JSON list"),
    ],
)
def test_a_file_that_does_not_fit_is_rejected(tmp_path: Path, tensors, facts, named: str):
    path = tmp_path / "frames.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, {"frames": json.dumps(facts)})
    with pytest.raises(ConfigError, match=f"(?s)calibration: .*{named}"):
        read_frames(path)


def test_a_file_of_another_kind_is_rejected(tmp_path: Path):
    path = tmp_path / "frames.safetensors"
    path.write_text("frames")
    with pytest.raises(ConfigError, match="not a readable safetensors file"):
        read_frames(path)


def test_the_seed_draws_frames_of_the_search_and_leaves_the_held_out_ones():
    frames = [RecordedFrame(episode=0, observation=each) for each in observations("openvla", 1) * (FRAMES + 20)]
    frames = [replace(each, observation=replace(each.observation, stamp_ns=at)) for at, each in enumerate(frames)]
    held_out = RecordedFrame(episode=1, observation=frames[0].observation, held_out=True)
    first, again, other = (chosen("a set", [*frames, held_out], seed) for seed in (0, 0, 1))
    assert first == again and first.digest == again.digest
    assert first.shown != other.shown and first.digest != other.digest
    assert len(first.shown) == FRAMES and first.held_out == other.held_out == (held_out.observation,)


def test_too_few_frames_are_rejected_with_what_is_needed():
    with pytest.raises(ConfigError, match=r"has 15 frames and 1 held-out frames; at least 16"):
        chosen("a set", recorded("openvla", 15, 1), 0)
    with pytest.raises(ConfigError, match="a held-out one are needed"):
        chosen("a set", recorded("openvla", 16, 0), 0)


def test_held_out_frames_are_of_other_episodes():
    frames = recorded("openvla", 16, 2)
    with pytest.raises(ConfigError, match="held-out frames of episode 0, which is also used for calibration"):
        chosen("a set", [*frames[:-1], replace(frames[-1], episode=0)], 0)
