"""`edgeflow verify` on bundles of other sizes: images of any mode and shape, actions of several widths, no mask."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from edgeflow.contract import Pace
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import decode_serially
from edgeflow.engine.policy import PreparedFrame
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.lab.verify.policies.openvla import verify_bundle
from edgeflow.policies.openvla.policy import OpenVLAPolicy
from edgeflow.policies.openvla.preprocess import Preprocessor
from tests.tiny_checkpoint import TinySize, write_checkpoint

CPU = torch.device("cpu")
PIPELINED = Pace(5)  # as many ticks as the widest action has numbers
PICTURES = {
    "wide": Image.effect_noise((90, 31), 80).convert("RGB"),
    "grey": Image.effect_noise((20, 33), 80),
    "palette": Image.effect_noise((30, 40), 80).convert("RGB").convert("P", palette=Image.Palette.ADAPTIVE, colors=16),
    "point": Image.new("RGB", (1, 1), (250, 10, 90)),
    "veiled": Image.effect_noise((28, 28), 80).convert("RGBA"),
}
STATISTICS = {
    "wide": {"action": {"q01": [-1.0] * 5, "q99": [2.0] * 5}},
    "narrow": {"action": {"q01": [0.0, 1.0], "q99": [3.0, 1.0], "mask": [True, True]}},
}


def record(directory: Path, policy: OpenVLAPolicy, name: str, key: str) -> tuple[dict, dict[str, torch.Tensor]]:
    """A case as serial decoding answers it: its entry of cases.json and its tensors."""
    PICTURES[name].save(directory / f"{name}.png")
    with Image.open(directory / f"{name}.png") as picture:
        image = np.asarray(picture.convert("RGB"))
    instruction = f"Go to {name}"
    frame = PreparedFrame(policy.preprocess(image), policy.prompt_ids(instruction))
    engine = PolicyEngine(policy, policy.K, 200, keep_logits=True)
    (decoded,) = decode_serially(engine, [frame])
    width = len(STATISTICS[key]["action"]["q01"])
    ids = decoded.sampled.token_ids[:width]
    logits = torch.stack(decoded.logits)
    top = logits.topk(5)
    crop = Preprocessor(replace(policy.config.image, strategy="resize-crop"))(image)
    tensors = {
        "pixel_values": frame.pixel_values[None],
        "pixel_values_first3.resize-crop": torch.from_numpy(crop[None, :3]).contiguous(),
        "prefill_last_logits": logits[0].clone(),
        "step_top5_ids": top.indices,
        "step_top5_logits": top.values,
    }
    entry = {
        "name": name,
        "image": f"{name}.png",
        "instruction": instruction,
        "unnorm_key": key,
        "input_ids_after_29871": list(frame.prompt_ids),
        "action_token_ids": list(ids),
        "normalized_actions": policy.action_decoder.normalized(ids).tolist(),
        "actions": policy.decode_actions(ids, key).tolist(),
    }
    return entry, {f"{name}.{quantity}": tensor for quantity, tensor in tensors.items()}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    directory = write_checkpoint(tmp_path_factory.mktemp("bundle"), TinySize(kv_heads=2), norm_stats=STATISTICS)
    policy = load_openvla(directory, torch.float32, CPU)
    entries, tensors = [], {}
    for index, name in enumerate(PICTURES):
        entry, its_tensors = record(directory, policy, name, ("wide", "narrow")[index % 2])
        entries.append(entry)
        tensors |= its_tensors
    (directory / "cases.json").write_text(json.dumps({"cases": entries}))
    save_file(tensors, directory / "expected.safetensors")
    return directory


@pytest.mark.parametrize("pace", [Pace(1), PIPELINED])
def test_every_case_and_quantity_is_compared_and_agrees(bundle: Path, pace: Pace):
    results = verify_bundle(bundle, pace)
    assert [result for result in results if not result.ok] == []
    for name in PICTURES:
        assert {result.quantity for result in results if result.case == name} == {
            "input ids", "pixel values", "pixel values, resize-crop", "prefill logits", "step logits",
            "action tokens", "normalized actions", "actions",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "quantity"),
    [("pixel_values", "pixel values"), ("pixel_values_first3.resize-crop", "pixel values, resize-crop"),
     ("step_top5_logits", "step logits"), ("prefill_last_logits", "prefill logits")],
)  # fmt: skip
@pytest.mark.parametrize("damage", ["value", "shape"])
def test_failed_comparisons_are_named(bundle: Path, tmp_path: Path, name: str, quantity: str, damage: str):
    for file in bundle.iterdir():
        (tmp_path / file.name).symlink_to(file)
    tensors = load_file(bundle / "expected.safetensors")
    wrong = tensors[f"grey.{name}"]
    tensors[f"grey.{name}"] = wrong + 2e-4 if damage == "value" else wrong[..., :-1].contiguous()
    (tmp_path / "expected.safetensors").unlink()
    save_file(tensors, tmp_path / "expected.safetensors")
    off = [(result.case, result.quantity) for result in verify_bundle(tmp_path, PIPELINED) if not result.ok]
    assert off == [("grey", quantity)]
