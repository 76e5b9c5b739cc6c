"""Draws of a batch are those of each frame by itself, also where they cannot be separated."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from edgeflow_lerobot.randomness import FrameByFrame, Tensors
from torch import Tensor

SEEDS = (3, 1 << 62, 5)
CPU = torch.device("cpu")


def of_size(batch: Tensors) -> Tensor:
    rows = len(batch["x"])
    drawn = torch.randn(rows, 3) + torch.rand(size=(rows, 3)) + torch.normal(0.0, 1.0, size=(rows, 3), device=CPU)
    return batch["x"] + drawn + torch.randn((rows, 3), dtype=torch.float64)


def of_codes(batch: Tensors) -> Tensor:
    chances = torch.softmax(batch["x"].repeat_interleave(2, 0), -1)  # two draws of each frame
    codes = torch.multinomial(chances, num_samples=1).view(-1, 2) + torch.multinomial(chances, 1).view(-1, 2)
    return codes + torch.bernoulli(chances).view(-1, 6)[:, :2] + torch.normal(chances, 1.0).view(-1, 6)[:, 2:4]


def across_frames(batch: Tensors) -> Tensor:
    return batch["x"] + torch.randn(2, len(batch["x"]), 3).sum(0)  # the first dimension is not that of the frames


def unknown_to_it(batch: Tensors) -> Tensor:
    return batch["x"] + torch.empty(len(batch["x"]), 3).uniform_()


def in_place(batch: Tensors) -> Tensor:
    return batch["x"].mul_(2) + torch.randn(2, len(batch["x"]), 3).sum(0)


@pytest.mark.parametrize("answer", [of_size, of_codes, across_frames, unknown_to_it, in_place])
def test_a_frame_gets_what_it_would_get_alone(answer: Callable[[Tensors], Tensor]):
    batch = {"x": torch.linspace(-1, 1, 9).view(3, 3)}
    alone = []
    for index, seed in enumerate(SEEDS):
        torch.manual_seed(seed)
        alone.append(answer({"x": batch["x"][index : index + 1].clone()}))
    state = torch.random.get_rng_state()
    answers = FrameByFrame(answer, CPU)
    for _ in range(2):
        assert torch.equal(answers(batch, SEEDS), torch.cat(alone))
    assert torch.equal(answers({"x": batch["x"][:1]}, SEEDS[:1]), alone[0])
    assert torch.equal(torch.random.get_rng_state(), state) or answer is unknown_to_it
