"""The search beside what AutoAWQ and llm-awq chose on the same calibration tokens (bundle awq-search, group 64)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from edgeflow.model_paths import EMBEDDED_CHAT_MODEL
from edgeflow.models.chat import read_published
from edgeflow.models.checkpoint import Weights
from edgeflow.quantize.files.grouping import grouping
from edgeflow.quantize.search.block_search import SearchSettings, run_batches, search_block
from edgeflow.quantize.search.choices import BlockChoice
from edgeflow.quantize.search.decoder import Decoder
from edgeflow.quantize.search.scales import ScaleForm

GROUP = 64
ROWS = 4  # texts of a batch
LENGTH = 512


def model_folder(oracles: Path, model: str) -> Path:
    """The checkpoint of `chat` or `stories`."""
    return {"chat": EMBEDDED_CHAT_MODEL, "stories": oracles / "stories260K-hf"}[model]


def float_decoder(folder: Path) -> Decoder:
    """The decoder of a chat checkpoint in float32, padded for groups of 64."""
    config = read_published(folder).text
    weights = Weights(folder, torch.float32, torch.device("cpu"))
    return Decoder.of(weights, config, stem="model.", inner=grouping(config, GROUP).inner)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One block. largest_loss_error: relative, over its scale groups and candidates."""

    ratios_equal: bool
    largest_loss_error: float
    limits_equal: int
    limits: int


class Recorded:
    """The recorded search of one model in one form, calibration seed 0."""

    def __init__(self, oracles: Path, model: str, form: ScaleForm) -> None:
        bundle = oracles / "awq-search"
        self.form = form
        self.tensors = load_file(bundle / f"{model}_g{GROUP}_{form.value}.safetensors")
        chosen = json.loads((bundle / f"{model}_g{GROUP}_{form.value}.json").read_text())
        self.ratios: dict[str, float] = {each["previous"]: each["ratio"] for each in chosen}
        self.decoder = float_decoder(model_folder(oracles, model))
        self._ids = load_file(bundle / f"{model}_calibration.safetensors")["seed0"].long()

    @cached_property
    def batches(self) -> list[list[Tensor]]:
        """The float inputs of every block."""
        rotation, found = self.decoder.rotation(LENGTH), [list(self.decoder.embed(self._ids).split(ROWS))]
        with torch.inference_mode():
            for block in self.decoder.blocks():
                found.append([run.hidden for run in run_batches(block, found[-1], rotation)])
        return found

    def search(self, index: int) -> BlockChoice:
        """Our own choices for a block, without s = 1 as a candidate."""
        block, rotation = self.decoder.block(index), self.decoder.rotation(LENGTH)
        settings = SearchSettings(group=GROUP, form=self.form, identity=False)
        with torch.inference_mode():
            return search_block(block, run_batches(block, self.batches[index], rotation), rotation, settings)


def comparison(recorded: Recorded, index: int) -> Comparison:
    """A block's choices beside the recorded ones."""
    prefix, choice = recorded.decoder.block_prefix(index), recorded.search(index)
    ratios, errors = [], []
    for group in choice.groups:
        name = prefix + group.previous
        losses = recorded.tensors[f"{name}.losses"]
        errors.append(((group.losses - losses) / losses).abs().max().item())
        ratios.append(group.ratio is not None and abs(group.ratio - recorded.ratios[name]) < 1e-9)
    equal = total = 0
    for linear, limits in (choice.limits or {}).items():
        near = torch.isclose(limits, _recorded_limits(recorded, prefix, linear, choice), rtol=1e-4, atol=0)
        equal, total = equal + int(near.sum()), total + near.numel()
    return Comparison(all(ratios), max(errors), equal, total)


def _recorded_limits(recorded: Recorded, prefix: str, linear: str, choice: BlockChoice) -> Tensor:
    """The recorded limits [N, E/G] of a linear in the scales that the search chose.

    AutoAWQ's scales differ from ours by a power of two in groups with channels that are always zero.
    """
    limits = recorded.tensors[f"{prefix}{linear}.max_val"].float()
    for group in choice.groups:
        share = _share(group.scales, recorded.tensors[f"{prefix}{group.previous}.scales"])
        if linear in group.scaled:
            limits = limits * share
        if linear == group.previous:
            limits = limits / share
    return limits


def _share(found: Tensor, recorded: Tensor) -> float:
    """The factor between two scales of the same ratio: that of most channels."""
    return (found / recorded).median().item()
