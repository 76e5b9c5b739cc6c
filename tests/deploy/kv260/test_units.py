"""The FP32 multiplier and adder, the conversion from FP16 and a processing element, equal to NumPy to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.deploy.kv260.simulator import HERE, build, needs_verilator, run

pytestmark = needs_verilator

RECORD = np.dtype([("a", "u4"), ("b", "u4"), ("half", "u2"), ("integer", "u1"), ("turn", "u1")])
MULTIPLIER, ADDER, ELEMENT = 6, 4, 10  # cycles from operands to result
LONGEST = 10


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("units", tmp_path_factory.mktemp("units"), str(HERE / "units.sv"))


def simulate(program: Path, a=0, b=0, half=0, integer=0) -> np.ndarray:
    """uint32 [cycles, 4]: product, sum, single and element in every cycle, one set of operands per cycle."""
    count = max(np.size(each) for each in (a, b, half, integer))
    records = np.zeros(count + LONGEST, RECORD)
    for name, values in (("a", a), ("b", b), ("half", half), ("integer", integer)):
        records[name][:count] = values
    records["turn"] = np.arange(len(records)) % 2
    return np.frombuffer(run(program, records.tobytes()), np.uint32).reshape(-1, 4)


def bits(values: np.ndarray) -> np.ndarray:
    """float32 as uint32, every NaN as 0x7FC00000."""
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))


def random_bits(draw: np.random.Generator, count: int) -> np.ndarray:
    return draw.integers(0, 2**32, count, dtype=np.uint32)


def edges(draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of exponents with the first, second, middle and last fraction; infinities and NaN among them."""
    fractions = np.array([0, 1, 0x400000, 0x7FFFFF], np.uint32)
    values = (np.arange(256, dtype=np.uint32)[:, None] << 23 | fractions).ravel()
    a, b = (each.ravel() for each in np.meshgrid(values, values))
    return a | draw.integers(0, 2, a.size, np.uint32) << 31, b | draw.integers(0, 2, b.size, np.uint32) << 31


def cancelling(draw: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of unlike signs whose exponents differ by one at most, and whose first bits agree by any length."""
    a = random_bits(draw, count)
    differ = random_bits(draw, count) >> draw.integers(7, 32, count).astype(np.uint32)
    return a, (a ^ differ ^ np.uint32(1 << 31)) + (draw.integers(0, 3, count).astype(np.uint32) - 1 << 23)


def tying(draw: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of 13 significant bits and any exponents: their products often lie between two numbers of 24 bits."""
    a, b = (random_bits(draw, count) & np.uint32(0xFFFFF800) for _ in range(2))
    return a, b


def small(draw: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers whose products lie about the subnormal numbers."""
    first = draw.integers(0, 127, count)
    second = np.clip(draw.integers(95, 130, count) - first, 0, 254)
    a, b = (exponent.astype(np.uint32) << 23 | random_bits(draw, count) & 0x807FFFFF for exponent in (first, second))
    return a, b


def smallest(draw: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Subnormal numbers and normal ones beside them: their sums lie about the subnormal numbers."""
    a, b = (random_bits(draw, count) & np.uint32(0x80FFFFFF) for _ in range(2))
    return a, b


def operands(seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    count = 100_000
    pairs = [edges(draw), cancelling(draw, count), tying(draw, count), small(draw, count)]
    pairs.append(smallest(draw, count))
    pairs.append((random_bits(draw, count), random_bits(draw, count)))
    a, b = (np.concatenate(each) for each in zip(*pairs, strict=True))
    return a, b


def test_products_and_sums_are_numpys(units: Path):
    a, b = operands(1)
    out = simulate(units, a, b)
    with np.errstate(all="ignore"):
        products, sums = a.view(np.float32) * b.view(np.float32), a.view(np.float32) + b.view(np.float32)
    # A unit that takes subnormal operands or results as 0 differs in all of these.
    tiny = np.finfo(np.float32).tiny
    for results in (products, sums):
        assert np.count_nonzero((np.abs(results) < tiny) & (results != 0)) > 10_000
        assert np.isinf(results).any() and np.isnan(results).any() and (results == 0).any()
    np.testing.assert_array_equal(out[MULTIPLIER:][: len(a), 0], bits(products))
    np.testing.assert_array_equal(out[ADDER:][: len(a), 1], bits(sums))


def test_every_fp16_number_becomes_its_fp32_number(units: Path):
    halves = np.arange(1 << 16, dtype=np.uint16)
    out = simulate(units, half=halves)
    np.testing.assert_array_equal(out[: len(halves), 2], bits(halves.view(np.float16).astype(np.float32)))


def test_a_processing_element_rounds_twice(units: Path):
    draw = np.random.default_rng(2)
    count = 200_000
    x = np.concatenate([random_bits(draw, count), small(draw, count)[0]])
    halves = draw.integers(0, 1 << 16, x.size).astype(np.uint16)
    integers = draw.integers(-15, 16, x.size).astype(np.int8)
    out = simulate(units, a=x, half=halves, integer=integers.view(np.uint8) & 31)
    with np.errstate(all="ignore"):
        inner = x.view(np.float32) * halves.view(np.float16)
        expected = inner * integers
        once = (x.view(np.float32).astype(np.float64) * halves.view(np.float16) * integers).astype(np.float32)
    assert np.count_nonzero(bits(once) != bits(expected)) > 10_000  # one rounding would fail
    taken = slice(0, x.size, 2)  # operands are taken in turn 0
    np.testing.assert_array_equal(out[ELEMENT:][taken, 3], bits(expected)[taken])
