"""Generated logs."""

import random
from collections import Counter

import pytest
from tokenizers import Tokenizer

from edgeflow.lab.demo.chat.logs.robot_log import (
    FAULTS,
    HELD,
    LINE_TOKENS,
    MOST_LINES,
    NO_FAULT,
    SIDES,
    LogLine,
    LogSource,
)
from edgeflow.model_paths import EMBEDDED_CHAT_MODEL


def drawn(lines, region=None, seed=0):
    return LogSource(random.Random(seed)).draw(lines, region)


def test_a_line_has_one_format():
    assert LogLine(7, "motor", "cube", "left").line() == "007 motor cube left"
    assert drawn(3).text().splitlines()[0] == "Robot log: time fault holding side"


def test_every_line_has_the_same_number_of_tokens():
    tokenizer = Tokenizer.from_file(str(EMBEDDED_CHAT_MODEL / "tokenizer.json"))
    entries = [LogLine(123, fault, held, side) for side in SIDES for held in (*HELD, "nothing") for fault in FAULTS]
    entries += [LogLine(890, NO_FAULT, "cube", "left")]
    for entry in entries:
        assert len(tokenizer.encode(f"{entry.line()}\n").ids) == LINE_TOKENS, entry


@pytest.mark.parametrize("lines", [4, 37, 290, MOST_LINES])
def test_times_increase_and_keep_three_digits(lines):
    for seed in range(20):
        times = [entry.time for entry in drawn(lines, seed=seed).entries]
        assert len(times) == lines
        assert times == sorted(set(times)) and times[0] >= 0 and times[-1] <= 999


def test_the_most_frequent_fault_is_clear_and_inside_the_region():
    region = range(20, 60)
    for seed in range(200):
        faults = [entry.fault for entry in drawn(80, region, seed).entries]
        counts = Counter(fault for fault in faults if fault != NO_FAULT)
        if not counts:
            continue
        (winner, most), *others = counts.most_common()
        assert all(count <= max(1, 0.65 * most) for _, count in others)
        assert {line for line, fault in enumerate(faults) if fault == winner} <= set(region)


def test_some_logs_have_faults_outside_the_region_and_most_have_none():
    logs = [drawn(80, range(20, 60), seed).entries for seed in range(200)]
    outside = [any(entry.fault != NO_FAULT for entry in (*log[:20], *log[60:])) for log in logs]
    assert 5 < sum(outside) < 100


def test_some_faults_and_objects_occur_once():
    logs = [drawn(80, seed=seed).entries for seed in range(100)]
    for column in (lambda entry: entry.fault, lambda entry: entry.held):
        once = [1 in Counter(map(column, log)).values() for log in logs]
        assert 25 < sum(once) < 75


def test_faults_are_rare_in_some_logs_and_fill_others():
    busy = [sum(entry.fault != NO_FAULT for entry in drawn(200, seed=seed).entries) for seed in range(400)]
    few, some, most = (sum(low <= count <= high for count in busy) for low, high in ((2, 5), (6, 40), (100, 180)))
    assert 1 not in busy and max(busy) <= 180
    assert 25 < few < 70 and 60 < some < 150 and 80 < most < 200


@pytest.mark.parametrize("lines", [1, 2, 3, 4, 9])
def test_events_fit_the_shortest_regions(lines):
    for seed in range(60):
        faults = [entry.fault for entry in drawn(40, range(10, 10 + lines), seed).entries]
        busy = [line for line, fault in enumerate(faults) if fault != NO_FAULT]
        winners = Counter(faults[line] for line in busy).most_common(1)
        assert all(line - 10 in range(lines) for line in busy if faults[line] == winners[0][0])


def test_the_same_seed_gives_the_same_log():
    assert drawn(50, seed=3) == drawn(50, seed=3) != drawn(50, seed=4)
