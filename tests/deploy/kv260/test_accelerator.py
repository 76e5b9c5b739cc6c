"""Whole linears through the simulated accelerator, equal to the package's model of it to the last bit; its cycles."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from edgeflow.lab.kv260 import constants, mac
from edgeflow.lab.kv260.macro import MacroShape, Words, pack
from edgeflow.lab.kv260.placement import linear_time
from tests.deploy.kv260.linears import Linears, Pauses, simulate
from tests.deploy.kv260.simulator import HERE, build, needs_verilator
from tests.lab.kv260.linears import random_linear, random_words

pytestmark = needs_verilator


@pytest.fixture(scope="module")
def accelerator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("accelerator", tmp_path_factory.mktemp("accelerator"), "--hierarchical", str(HERE / "hierarchy.vlt"))


def plain(outputs: int, inputs: int, group: int, scale: float = 1.0) -> Linears:
    draw = np.random.default_rng([outputs, inputs, group])
    x = (draw.standard_normal(inputs) * scale).astype(np.float32)
    return Linears((pack(random_linear(outputs, inputs, group, seed=group).gemm()),), x)


def expected(macros: Words, x: np.ndarray) -> np.ndarray:
    return mac.sums(mac.unpack_unit(macros), x[None])[0].view(np.uint32).reshape(-1, 8)


def several() -> list[Linears]:
    """Every group size; channels with unequal counts of blocks, or none; one macro per block; the most inputs."""
    any_bits = pack(random_words(32, 64, 32, seed=6))
    x = np.random.default_rng(6).standard_normal(64).astype(np.float32)
    return [
        plain(64, 256, 64),
        plain(24, 128, 32),
        plain(264, 32, 32),  # blocks of one macro: more wait to leave than there is room for
        plain(40, 256, 128),
        plain(8, 8192, 128),
        plain(32, 128, 64, scale=1e-38),  # subnormal products and sums
        plain(32, 128, 64, scale=1e38),  # infinities, and NaN from unlike ones
        Linears((any_bits, any_bits[::-1].copy(), any_bits[:3].copy()), x),
        Linears(tuple(any_bits[:1] for _ in range(12)), x[::-1].copy()),  # one channel, which is empty between blocks
        plain(64, 256, 64),
    ]


PAUSES = [
    Pauses(),
    Pauses(x=300, weights=300, sums=300, seed=1),
    Pauses(x=700, weights=700, seed=2),
    Pauses(sums=980, seed=3),
    Pauses(weights=950, seed=4),
]


@pytest.mark.parametrize("pauses", PAUSES, ids=str)
def test_linears_are_the_models_to_the_last_bit(accelerator: Path, pauses: Pauses):
    """Activations and weights of later linears are offered while earlier ones are being computed."""
    linears = several()
    for given, answer in zip(linears, simulate(accelerator, linears, pauses), strict=True):
        for macros, sums in zip(given.macros, answer.sums, strict=True):
            np.testing.assert_array_equal(sums, expected(macros, given.x))


@pytest.mark.parametrize("pauses", PAUSES, ids=str)
def test_data_offered_early_is_accepted_in_its_turn(accelerator: Path, pauses: Pauses):
    """Offered before a linear has left, or even started, the next activations come after its last sums, and the next
    weights after the activations.
    """
    pairs = list(itertools.pairwise(simulate(accelerator, several(), pauses)))
    for before, after in pairs:
        used = after.weights.last > 0
        assert after.activations.offered < before.left.last.max() < after.activations.first
        assert (after.activations.last < after.weights.first[used]).all()
    assert any((after.weights.offered < before.left.last.max()).all() for before, after in pairs)
    assert any(after.activations.offered < before.weights.first.max() for before, after in pairs)


def test_the_hard_linears_have_their_stated_properties():
    sums = {index: expected(each.macros[0], each.x).view(np.float32) for index, each in enumerate(several())}
    tiny = np.finfo(np.float32).tiny
    assert ((np.abs(sums[5]) < tiny) & (sums[5] != 0)).any()
    assert np.isinf(sums[6]).any() or np.isnan(sums[6]).any()
    assert np.isnan(sums[7]).any() and not np.isnan(sums[7]).all()


@pytest.mark.parametrize("group", [32, 64, 128])
def test_a_strip_is_taken_in_every_cycle(accelerator: Path, group: int):
    linear = plain(outputs=64, inputs=2 * group, group=group)  # two blocks of two macros per channel
    (answer,) = simulate(accelerator, [linear])
    first_weight, last_weight, last_sum = answer.weights.first, answer.weights.last, answer.left.last
    np.testing.assert_array_equal(last_weight - first_weight + 1, 2 * 2 * (2 + group // 4))
    # The last half of a step, at most one cycle of waiting for its turn, 21 cycles in the MACRO_MAC, two strips out.
    assert set(last_sum - last_weight) <= {25, 26}


def test_the_cycle_model_counts_the_cycles_of_streaming(accelerator: Path):
    linear = plain(outputs=96, inputs=256, group=64)
    (answer,) = simulate(accelerator, [linear])
    first_weight, last_weight, last_sum = answer.weights.first, answer.weights.last, answer.left.last
    time = linear_time(MacroShape(96, 256, 64))
    streaming, steps = (each * constants.CLOCK.value for each in (time.streaming, time.steps))
    assert max(last_weight - first_weight + 1) == pytest.approx(streaming)
    # The steps run behind streaming: without overlap, as many cycles more as there are steps would pass.
    assert max(last_sum - first_weight + 1) <= streaming + 26 < streaming + steps
