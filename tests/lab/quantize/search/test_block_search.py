"""The search of a block: folding keeps the function, s = 1 is never missed, counted rows alone count."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from edgeflow.kernels.awq import rounded
from edgeflow.lab.quantize.search.block import (
    DOWN,
    INPUT_NORM,
    LINEARS,
    OUTPUT,
    QUERY,
    VALUE,
    BlockRun,
    DecoderBlock,
    Rotation,
)
from edgeflow.lab.quantize.search.block_search import SearchSettings, run_batches, scale_groups, search_block
from edgeflow.lab.quantize.search.choices import BlockChoice
from edgeflow.lab.quantize.search.scales import ScaleForm
from tests.lab.quantize.cases import CONFIGS, naive_limits, random_decoder, random_ids

SETTINGS = SearchSettings(group=32)
Case = tuple[DecoderBlock, list[BlockRun], Rotation]


def case(name: str = "llama", **shape: bool) -> Case:
    decoder = random_decoder(CONFIGS[name])
    block, rotation = decoder.block(0), decoder.rotation(24)
    block = replace(block, shape=replace(block.shape, **shape))
    hidden = decoder.embed(random_ids(decoder.config, 4, 24))
    return block, run_batches(block, hidden.split(2), rotation), rotation


def hidden_of(runs: list[BlockRun]) -> torch.Tensor:
    return torch.cat([run.hidden for run in runs])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("gemma", [False, True], ids=["plain", "gemma"])
@torch.inference_mode()
def test_a_block_with_its_scales_is_the_same_function(name: str, gemma: bool):
    """A scale that is not undone, such as that of a norm stored minus one or of a bias, causes errors of 0.01 and
    more.
    """
    block, runs, rotation = case(name, gelu=gemma, plus_one=gemma)
    choice = search_block(block, runs, rotation, replace(SETTINGS, clip=False, identity=False))
    decoder = random_decoder(CONFIGS[name])
    hidden = decoder.embed(random_ids(decoder.config, 4, 24))
    again = choice.scaled(block).run(hidden, rotation).hidden
    wanted = hidden_of(runs)
    assert (again - wanted).abs().max() <= 2e-5 * wanted.abs().max()
    assert any((group.scales != 1).any() for group in choice.groups)


def test_values_and_output_share_scales_only_where_they_have_the_same_shape():
    names = [[group.previous for group in scale_groups(case(name)[0])] for name in ("llama", "llama, KV heads shared")]
    assert VALUE in names[0] and VALUE not in names[1]
    assert [name for name in names[0] if name != VALUE] == names[1]


def test_values_that_others_read_keep_their_scale():
    assert VALUE not in [group.previous for group in scale_groups(case("llama", outside=True)[0])]


@torch.inference_mode()
def test_with_s_equal_to_one_no_loss_is_above_round_to_nearest():
    """Without it, duo's best ratio is worse than round to nearest in some groups: here in the first."""
    block, runs, rotation = case()
    found = search_block(block, runs, rotation, replace(SETTINGS, clip=False))
    without = search_block(block, runs, rotation, replace(SETTINGS, clip=False, identity=False))
    for group, other in zip(found.groups, without.groups, strict=True):
        assert torch.equal(group.losses[:20], other.losses)
        assert group.losses.min() <= group.losses[20]
    plain = search_block(block, runs, rotation, replace(SETTINGS, clip=False, form=ScaleForm.X))
    for group, other in zip(found.groups, plain.groups, strict=True):
        assert group.losses[20] == pytest.approx(other.losses[0].item(), rel=1e-6)


@torch.inference_mode()
def test_the_first_smallest_loss_wins():
    block, runs, rotation = case()
    for group in search_block(block, runs, rotation, SETTINGS).groups:
        best = group.losses.argmin().item()
        assert group.ratio == (None if best == 20 else best / 20)


@torch.inference_mode()
def test_a_loss_is_the_error_of_the_measured_output():
    block, runs, rotation = case()
    group = search_block(block, runs, rotation, SETTINGS).groups[-1]
    assert group.scaled == (DOWN,) and group.ratio is not None
    weight = block.weight(DOWN)
    x = torch.cat([run.inputs[DOWN] for run in runs])
    off = x @ (rounded(weight * group.scales, 32).values / group.scales - weight).t()
    assert group.losses.min().item() == pytest.approx(off.square().mean().item(), rel=1e-4)


@torch.inference_mode()
def test_limits_are_searched_on_scaled_weights():
    block, runs, rotation = case("llama, KV heads shared")
    choice = search_block(block, runs, rotation, SETTINGS)
    assert choice.limits is not None and QUERY not in choice.limits
    for name, limits in choice.limits.items():
        largest = BlockChoice(choice.groups).linear(name, block.weight(name)).view(*limits.shape, -1).abs().amax(2)
        share = limits / largest
        assert share.min() > 0.549 and share.max() <= 1 and (share < 1).any()


@torch.inference_mode()
def test_only_counted_rows_count():
    """Losses over the last rows of each sequence equal those of a sequence of only these rows, if no row
    sees another.
    """
    block, runs, rotation = case()
    counted = [torch.zeros(2, 24, dtype=torch.bool) for _ in runs]
    for mask in counted:
        mask[:, -3:] = True
    found = search_block(block, runs, rotation, SETTINGS, counted)
    everything = search_block(block, runs, rotation, SETTINGS)
    assert not torch.equal(found.groups[0].losses, everything.groups[0].losses)
    down = next(group for group in found.groups if group.scaled == (DOWN,))
    x = torch.cat([run.inputs[DOWN][:, -3:] for run in runs])
    weight = block.weight(DOWN)
    off = x @ (rounded(weight * down.scales, 32).values / down.scales - weight).t()
    assert down.losses.min().item() == pytest.approx(off.square().mean().item(), rel=1e-4)


@torch.inference_mode()
def test_limits_count_the_rows_that_losses_count():
    """With all rows half of the limits are others; a tie may fall the other way."""
    block, runs, rotation = case()
    counted = [torch.zeros(2, 24, dtype=torch.bool) for _ in runs]
    for mask in counted:
        mask[:, -3:] = True
    found = search_block(block, runs, rotation, SETTINGS, counted)
    assert found.limits is not None
    for name, limits in found.limits.items():
        scales = found.input_scales(name)
        x = torch.cat([run.inputs[name][:, -3:] for run in runs]).flatten(0, -2)
        x = x if scales is None else x / scales
        wanted = naive_limits(BlockChoice(found.groups).linear(name, block.weight(name)), x, 32)
        assert torch.isclose(limits, wanted, rtol=1e-6).float().mean() >= 0.99


def test_without_choices_nothing_changes():
    block, _, _ = case("qwen2")
    for name in LINEARS:
        assert torch.equal(BlockChoice().linear(name, block.weight(name)), block.weight(name))
    assert BlockChoice().input_scales(OUTPUT) is None and BlockChoice().output_scales(INPUT_NORM) is None
