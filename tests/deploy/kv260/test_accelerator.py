"""Whole linears through the simulated accelerator, equal to the package's model of it to the last bit; its cycles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeflow.accelerator import constants, mac
from edgeflow.accelerator.cycles import linear_time
from edgeflow.accelerator.macro import MacroShape, pack
from tests.accelerator.linears import random_linear, random_words
from tests.deploy.kv260.linears import Linear, Pauses, simulate
from tests.deploy.kv260.simulator import HERE, build, needs_verilator

pytestmark = needs_verilator


@pytest.fixture(scope="module")
def accelerator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("accelerator", tmp_path_factory.mktemp("accelerator"), "--hierarchical", str(HERE / "hierarchy.vlt"))


def plain(outputs: int, inputs: int, group: int, scale: float = 1.0) -> Linear:
    draw = np.random.default_rng([outputs, inputs, group])
    x = (draw.standard_normal(inputs) * scale).astype(np.float32)
    return Linear(pack(random_linear(outputs, inputs, group, seed=group).gemm()), x)


def expected(linear: Linear, x: np.ndarray) -> np.ndarray:
    return mac.sums(mac.unpack_unit(linear.macros), x[None])[0].view(np.uint32).reshape(-1, 8)


def several() -> list[Linear]:
    """Every group size; channels with unequal counts of blocks, or none; one macro per block; the most inputs."""
    any_bits = pack(random_words(32, 64, 32, seed=6))
    return [
        plain(64, 256, 64),
        plain(24, 128, 32),
        plain(264, 32, 32),  # blocks of one macro: more wait to leave than there is room for
        plain(40, 256, 128),
        plain(8, 8192, 128),
        plain(32, 128, 64, scale=1e-38),  # subnormal products and sums
        plain(32, 128, 64, scale=1e38),  # infinities, and NaN from unlike ones
        Linear(any_bits, np.random.default_rng(6).standard_normal(64).astype(np.float32)),
        Linear(any_bits[::-1].copy(), None),
    ]


@pytest.mark.parametrize(
    "pauses", [Pauses(), Pauses(into=300, out=300, seed=1), Pauses(into=700, seed=2), Pauses(out=980, seed=3)], ids=str
)
def test_linears_are_the_models_to_the_last_bit(accelerator: Path, pauses: Pauses):
    linears = several()
    answers = simulate(accelerator, linears, pauses)
    for linear, before, answer in zip(linears, [linears[0], *linears], answers, strict=False):
        x = before.x if linear.x is None else linear.x
        np.testing.assert_array_equal(answer.sums, expected(linear, x))


def test_the_hard_linears_are_what_they_are_said_to_be():
    sums = {index: expected(linear, linear.x).view(np.float32) for index, linear in enumerate(several()[:8])}
    tiny = np.finfo(np.float32).tiny
    assert ((np.abs(sums[5]) < tiny) & (sums[5] != 0)).any()
    assert np.isinf(sums[6]).any() or np.isnan(sums[6]).any()
    assert np.isnan(sums[7]).any() and not np.isnan(sums[7]).all()


@pytest.mark.parametrize("group", [32, 64, 128])
def test_a_strip_is_taken_in_every_cycle(accelerator: Path, group: int):
    linear = plain(outputs=64, inputs=2 * group, group=group)  # two blocks of two macros per channel
    (answer,) = simulate(accelerator, [linear])
    first_weight, last_weight, _, last_sum = answer.cycles.T.astype(int)
    np.testing.assert_array_equal(last_weight - first_weight + 1, 2 * 2 * (2 + group // 4))
    # The last half of a step, at most one cycle of waiting for its turn, 21 cycles in the MACRO_MAC, two strips out.
    assert set(last_sum - last_weight) <= {25, 26}


def test_the_cycle_model_counts_what_streaming_takes(accelerator: Path):
    linear = plain(outputs=96, inputs=256, group=64)
    (answer,) = simulate(accelerator, [linear])
    first_weight, last_weight, _, last_sum = answer.cycles.T.astype(int)
    time = linear_time(MacroShape(96, 256, 64))
    streaming, steps = (each * constants.CLOCK.value for each in (time.streaming, time.steps))
    assert max(last_weight - first_weight + 1) == pytest.approx(streaming)
    # The steps run behind streaming: without overlap, as many cycles more as there are steps would pass.
    assert max(last_sum - first_weight + 1) <= streaming + 26 < streaming + steps
