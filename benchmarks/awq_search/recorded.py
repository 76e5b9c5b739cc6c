"""The search beside what AutoAWQ and llm-awq chose on the same calibration tokens (bundle awq-search, group 64)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from edgeflow.lab.quantize.files.source import grouping
from edgeflow.lab.quantize.search.block_search import ScaleGroup, Search, SearchSettings, run_batches, scale_groups
from edgeflow.lab.quantize.search.choices import BlockChoice, GroupChoice
from edgeflow.lab.quantize.search.decoder import DecoderTensors
from edgeflow.lab.quantize.search.scales import RATIOS, ChannelStatistics, ScaleForm, middle, normalised, powers_of
from edgeflow.model_paths import EMBEDDED_CHAT_MODEL
from edgeflow.models.checkpoint import Weights
from edgeflow.models.published import read_published

GROUP = 64
ROWS = 4  # texts of a batch
LENGTH = 512
NEAR = 1e-5  # the bar for losses


def model_folder(oracles: Path, model: str) -> Path:
    """The checkpoint of `chat` or `stories`."""
    return {"chat": EMBEDDED_CHAT_MODEL, "stories": oracles / "stories260K-hf"}[model]


def float_decoder(folder: Path) -> DecoderTensors:
    """The decoder of a chat checkpoint in float32, padded for groups of 64."""
    config = read_published(folder).text
    weights = Weights(folder, torch.float32, torch.device("cpu"))
    return DecoderTensors.of(weights, config, stem="model.", inner=grouping(config, GROUP).inner)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One block, each step with what was recorded of the step before it, as the largest relative errors.

    A mean that differs in its last bit moves single roundings, so losses by 1e-3 and single limits: the last bit of a
    sum or a square root depends on the processor.
    """

    ratios_equal: bool
    """Share of equal ratios in the whole search, starting from the calibration tokens."""
    statistics: float
    """Error of the statistics, computed from the means."""
    losses: float
    """The largest error of the candidates' losses, computed from the recorded means. A divisor may be off by one unit
    in its last place where only that reproduces the record.
    """
    scales: float
    """Error of the chosen scales, except for a power of two."""
    limits_equal: int
    """Number of equal limits among `limits`, computed with the recorded scales."""
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

    def search(self, index: int) -> Search:
        """The search of a block, without s = 1 as a candidate."""
        block, rotation = self.decoder.block(index), self.decoder.rotation(LENGTH)
        settings = SearchSettings(group=GROUP, form=self.form, identity=False)
        runs = run_batches(block, self.batches[index], rotation)
        return Search(block=block, runs=runs, rotation=rotation, settings=settings)


@torch.inference_mode()
def comparison(recorded: Recorded, index: int) -> Comparison:
    """A block's search beside the recorded one."""
    prefix, search = recorded.decoder.block_prefix(index), recorded.search(index)
    own, kept = search.choice(), _BlockRecordings(recorded, prefix)
    groups = scale_groups(search.block)
    scaled = BlockChoice(tuple(replace(each, scales=kept("scales", each.previous)) for each in own.groups))
    equal = total = 0
    for linear, limits in search.limits(scaled).items():
        near = torch.isclose(limits, kept("max_val", linear), rtol=1e-4, atol=0)
        equal, total = equal + int(near.sum()), total + near.numel()
    return Comparison(
        ratios_equal=all(
            each.ratio is not None and abs(each.ratio - kept.ratio(each.previous)) < 1e-9 for each in own.groups
        ),
        statistics=max(_statistics_off(search.statistics(group), kept.statistics(group)) for group in groups),
        losses=max(_losses_off(search, group, kept) for group in groups),
        scales=max(_scales_off(each, kept) for each in own.groups),
        limits_equal=equal,
        limits=total,
    )


@dataclass(frozen=True, slots=True)
class _BlockRecordings:
    """The recordings of one block."""

    recorded: Recorded
    prefix: str

    def __call__(self, kind: str, name: str) -> Tensor:
        return self.recorded.tensors[f"{self.prefix}{name}.{kind}"].float()

    def ratio(self, previous: str) -> float:
        return self.recorded.ratios[self.prefix + previous]

    def losses(self, previous: str) -> Tensor:
        return self.recorded.tensors[f"{self.prefix}{previous}.losses"]

    def statistics(self, group: ScaleGroup) -> ChannelStatistics:
        return ChannelStatistics(self("x_mean", group.previous), self("w_mean", group.previous))


def _off(found: Tensor, wanted: Tensor) -> float:
    """The largest relative error; numbers that are 0 in both are equal."""
    error = (found - wanted).abs() / wanted.abs()
    return error.masked_fill((found == 0) & (wanted == 0), 0).max().item()


def _statistics_off(found: ChannelStatistics, wanted: ChannelStatistics) -> float:
    return max(_off(found.inputs, wanted.inputs), _off(found.weights, wanted.weights))


def _losses_off(search: Search, group: ScaleGroup, kept: _BlockRecordings) -> float:
    """The largest error of a group's 20 losses. For those that are not close, the divisor's neighbours are
    tried too.
    """
    statistics, wanted = kept.statistics(group), kept.losses(group.previous)
    live, off = statistics.inputs > 0, torch.full_like(wanted, torch.inf)
    for towards in (None, torch.inf, -torch.inf):
        missed = [step for step in range(len(RATIOS)) if off[step] > NEAR]
        tried = []
        for step in missed:
            powers = powers_of(search.settings.form, RATIOS[step], statistics)
            by = middle(powers)
            by = by if towards is None else torch.nextafter(by, by.new_tensor(towards))
            tried.append(normalised(powers, by, live=live))
        found = torch.tensor(search.losses(group, tried), dtype=wanted.dtype)
        off[missed] = torch.minimum(off[missed], (found / wanted[missed] - 1).abs())
    return off.max().item()


def _scales_off(chosen: GroupChoice, kept: _BlockRecordings) -> float:
    """The largest error of the chosen scales. Groups with channels that are always zero are left out: there AutoAWQ's
    scales differ by a power of two.
    """
    wanted = kept("scales", chosen.previous)
    live = kept("x_mean", chosen.previous) > 0
    share = chosen.scales[live] / wanted[live]
    return _off(share * torch.exp2(-share.median().log2().round()), torch.ones_like(share))
