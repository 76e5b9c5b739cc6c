"""The cycle model and the sizes: by hand where a hand can, and within the bars of the paper's own figures."""

from __future__ import annotations

import pytest

from edgeflow.lab.kv260 import constants
from edgeflow.lab.kv260.constants import Constant
from edgeflow.lab.kv260.macro import MacroShape
from edgeflow.lab.kv260.network import PAPER_MODEL, PUBLISHED
from edgeflow.lab.kv260.placement import (
    ACTIVATIONS,
    PES,
    PLACEMENTS,
    STREAMING,
    TokenTime,
    head_time,
    layer_times,
    linear_time,
    mac_rate,
    token_time,
)
from edgeflow.lab.kv260.report import cosimulate, subject
from edgeflow.lab.kv260.sizes import second_head_bytes, sizes
from tests.lab.kv260.checkpoint import decoder_of

CONFIG = PUBLISHED[PAPER_MODEL]
MIB = 1 << 20


def times() -> list[TokenTime]:
    return [token_time(CONFIG, 64, placement) for placement in PLACEMENTS]


def test_a_linear_by_hand():
    """9 blocks: channel 0 has 3. 2 macros of 18 strips and 8 steps of two cycles, at 200 cycles per microsecond."""
    time = linear_time(MacroShape(72, 128, 64))
    assert time.streaming == 3 * 2 * 18 / 200
    assert time.steps == 3 * 2 * 16 / 200
    assert time.activations == (72 + 128) / 4 / 200
    assert time.overlapped == time.streaming + time.activations
    assert time.limits == {STREAMING: time.streaming, ACTIVATIONS: time.activations}
    assert time.in_turn == time.streaming + time.steps + time.activations


def test_slow_steps_or_a_slow_memory_become_the_limit(monkeypatch: pytest.MonkeyPatch):
    shape = MacroShape(64, 640, 64)
    fast = linear_time(shape)
    assert set(fast.limits) == {STREAMING, ACTIVATIONS}
    monkeypatch.setattr(constants, "STEP_CYCLES", Constant(3, "cycles", "this test"))
    slow = linear_time(shape)
    assert slow.limits == {PES: slow.steps, ACTIVATIONS: fast.activations} and slow.overlapped > fast.overlapped
    monkeypatch.setattr(constants, "DDR", Constant(1.28, "GB/s", "this test"))  # a tenth of what the channels take
    assert linear_time(shape).streaming == pytest.approx(10 * fast.streaming)


def test_the_a53s_take_the_times_of_table_one():
    assert layer_times(CONFIG) == pytest.approx({name: each.value for name, each in constants.TABLE_I.items()})
    assert sum(layer_times(CONFIG).values()) == pytest.approx(15952)
    assert 1.0 < mac_rate() < 1.1
    assert head_time(CONFIG) == pytest.approx(151936 * 896 / mac_rate() / 1e3)


def test_tokens_per_second_are_within_the_bars():
    """The head left on the A53s gives 5.5; forgetting the output projection there gives 6.2, the head 21."""
    bare, headed, papers, all_linears, all_there = times()
    assert bare.rate == pytest.approx(2.6, abs=0.05) and headed.rate == pytest.approx(1.9, abs=0.05)
    assert papers.rate == pytest.approx(5.1, rel=0.1) and papers.rate_in_turn == pytest.approx(5.1, rel=0.1)
    assert 5.7 <= all_linears.rate <= 6.2 and all_linears.rate_in_turn == pytest.approx(5.7, abs=0.01)
    assert 28 <= all_there.rate <= 31


def test_each_placement_says_its_limit():
    bare, _, papers, _, all_there = times()
    assert bare.shares() == {"A53s": pytest.approx(1)}
    assert list(papers.shares()) == ["A53s", STREAMING, ACTIVATIONS] and papers.shares()["A53s"] > 0.9
    assert list(all_there.shares()) == [STREAMING, "A53s", ACTIVATIONS]
    # Inputs and sums of 24 layers and the head, four per cycle, in 34.48 ms.
    moved = 24 * (896 + 1152 + 896 + 896 + 896 + 9728 + 4864 + 896) + 896 + 151936
    assert all_there.shares()[ACTIVATIONS] == pytest.approx(moved / 4 / 200e3 / all_there.milliseconds)
    assert all(sum(time.shares().values()) == pytest.approx(1) for time in times())


def test_sizes_are_within_the_bars():
    """Nothing is materialised: 443.7 MiB as AutoAWQ's file, 451.7 as macros; 52.9 % smaller than FP16, not 55.1."""
    found = sizes(CONFIG, 64)
    assert found.autoawq / MIB == pytest.approx(443.7, abs=0.5)
    assert found.macro / MIB == pytest.approx(451.7, abs=0.5)
    assert found.fp16 / 1e6 == pytest.approx(constants.PAPER_BASELINE_SIZE.value, abs=0.5)
    assert 1 - found.autoawq / found.fp16 == pytest.approx(0.529, abs=5e-4)
    assert 1 - (found.autoawq / MIB) / (found.fp16 / 1e6) == pytest.approx(0.551, abs=5e-4)  # the paper's, of two units
    assert second_head_bytes(CONFIG, 64) / MIB == pytest.approx(73.0, abs=0.1)


def test_the_report_has_notes_for_readers_of_the_paper():
    report = cosimulate(subject(PAPER_MODEL, None))
    told = " ".join(report.notes)
    assert "91.61 % or 14,650 µs, leave out the output projection (839 µs" in told
    assert "2.6 tokens per second without a head and 1.9 with one; the paper reports 2.8" in told
    assert "52.9 % smaller than FP16; the paper's 55.1 % divides 443.81 MiB by 988 MB" in told
    assert "second copy of the tied matrix: 73.0 MiB" in told
    values = report.as_dict()
    assert [each["paper_tokens_per_s"] for each in values["placements"]] == [2.8, 2.8, 5.1, None, None]
    assert all(each["source"] for each in values["constants"].values())


def test_another_network_scales_table_one():
    small = decoder_of()
    times = layer_times(small)
    assert times["silu"] == pytest.approx(278 * 96 / 4864)
    assert times["qkv"] == pytest.approx(1815 * 64 * 128 / (896 * 1152))
    report = cosimulate(subject(PAPER_MODEL, 128))
    assert report.sizes.macro < cosimulate(subject(PAPER_MODEL, 64)).sizes.macro
