"""Conversations about logs longer than a slot."""

import json
import random
import re
import shlex

import pytest
import torch
from tokenizers import Tokenizer
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.lab.demo.chat.logs.command import draw_logs_command
from edgeflow.lab.demo.chat.logs.long_logs import ELSEWHERE, LongLogs, write_long_logs
from edgeflow.lab.demo.chat.tokenizer import chat_text
from edgeflow.lab.training.gate.text_files import GateData, ModelText
from edgeflow.model_paths import EMBEDDED_CHAT_MODEL
from edgeflow.models.chat import load_chat_model
from edgeflow.models.memory_gate import GateRules
from edgeflow_client.errors import ConfigError

RULES = GateRules(sink=32, window=96, segment=256)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(EMBEDDED_CHAT_MODEL / "tokenizer.json"))


def drawn(count, **options):
    source, rng = LongLogs(rules=RULES, **options), random.Random(0)
    return [source.draw(rng) for _ in range(count)]


def test_prompts_have_all_numbers_of_segments_and_questions_are_not_folded(tokenizer):
    seen = set()
    for dialog in drawn(40, most_segments=3, turns=5):
        prompts = [dialog.messages(turns)[:-1] for turns in (1, len(dialog.turns))]
        lengths = [len(tokenizer.encode(chat_text(prompt) + "<|im_start|>assistant\n").ids) for prompt in prompts]
        segments = {RULES.segments(length) for length in lengths}
        assert len(segments) == 1
        seen |= segments
    assert seen == {1, 2, 3}


def test_most_look_ups_ask_for_compressed_lines(tokenizer):
    outside = asked = 0
    for dialog in drawn(60, most_segments=3, kinds=("held at fault",)):
        text = chat_text(dialog.messages(1))
        folded = RULES.sink + RULES.segments(len(tokenizer.encode(text).ids)) * RULES.segment
        for turn in dialog.turns:
            fault = re.search(r"the fault (\w+)\?", turn.question).group(1)
            line = re.search(rf"\n\d{{3}} {fault} ", text)
            place = len(tokenizer.encode(text[: line.start() + 1]).ids)
            outside += not RULES.sink <= place <= folded - 7
            asked += 1
    assert asked >= 60 and outside / asked < 2 * ELSEWHERE


def test_a_gate_can_be_trained_on_the_file(tmp_path):
    path, again = tmp_path / "logs.jsonl", tmp_path / "again.jsonl"
    for each in (path, again):
        write_long_logs(each, LongLogs(rules=RULES, most_segments=2), 8, 1)
    assert path.read_bytes() == again.read_bytes()
    assert [set(json.loads(line)) for line in path.read_text().splitlines()] == [{"messages"}] * 8
    model = load_chat_model(EMBEDDED_CHAT_MODEL, torch.float32, torch.device("cpu"))
    assert model.template is not None
    data = GateData([path], ModelText(model.tokenizer, model.template, model.stop_ids), RULES)
    assert len(data.lines) == 8 and data.short == 0


def test_the_command_writes_the_file_and_rejects_logs_that_are_too_long(tmp_path):
    draw_logs_command(tmp_path / "new" / "logs.jsonl", LongLogs(rules=RULES, most_segments=1), 2, 0)
    assert len((tmp_path / "new" / "logs.jsonl").read_text().splitlines()) == 2
    with pytest.raises(ConfigError, match=r"segments: at most 14: .* and logs of 1517 lines"):
        draw_logs_command(tmp_path / "long.jsonl", LongLogs(rules=RULES, most_segments=40), 2, 0)
    assert not (tmp_path / "long.jsonl").exists()


def test_the_command_says_how_to_train_on_the_file(tmp_path, capsys):
    path = tmp_path / "some logs.jsonl"
    draw_logs_command(path, LongLogs(rules=RULES, most_segments=1), 2, 0)
    told = capsys.readouterr().out
    assert "2 conversations, 0.0 MB" in told
    _, _, command = told.partition("train on it with: edgeflow ")
    arguments = [str(tmp_path / "gate") if each == "FOLDER" else each for each in shlex.split(command)]
    result = CliRunner().invoke(app, [*arguments, "--steps", "1", "--batch-tokens", "1", "--device", "cpu"])
    assert result.exit_code == 0 and "2 texts, 1 step" in result.stderr.splitlines()


def test_the_command_prints_json(tmp_path, capsys):
    path = tmp_path / "logs.jsonl"
    draw_logs_command(path, LongLogs(rules=RULES, most_segments=1), 1, 0, as_json=True)
    told = json.loads(capsys.readouterr().out)
    sizes = {"sink": 32, "window": 96, "segment": 256, "positions": "local"}
    assert told == {"conversations": 1, "bytes": path.stat().st_size, **sizes}


def test_a_file_that_cannot_be_written_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"out: .* is not a regular file"):
        draw_logs_command(tmp_path, LongLogs(rules=RULES), 2, 0)


def source_of(sink, window, segment, turns=6, segments=1):
    rules = GateRules(sink=sink, window=window, segment=segment)
    return LongLogs(rules=rules, turns=turns, most_segments=segments)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (source_of(32, 1, 1), "segment: at least 300: .* got sink 32, window 1, segment 1,"),
        (source_of(32, 96, 187), "segment: at least 188: .* 6 questions"),
        (source_of(300, 200, 2048), "segment: at most 1853: "),
        (source_of(32, 96, 256, segments=15), "segments: at most 14: "),
        (source_of(4000, 200, 256), "sink, window: at most 4130 tokens together: "),
        (source_of(32, 96, 256, turns=100), "turns: at most 67: "),
    ],
)
def test_sizes_that_no_log_has_are_rejected_with_the_nearest_that_one_has(source, message):
    with pytest.raises(ConfigError, match=message):
        source.check()


@pytest.mark.parametrize(
    "source",
    [
        source_of(0, 1, 300),
        source_of(0, 1, 150, turns=1),
        source_of(32, 96, 188),
        source_of(300, 200, 1853),
        source_of(32, 96, 256, segments=14),
        source_of(4030, 100, 38, turns=1),
        source_of(32, 96, 2039, turns=67),
    ],
)
def test_the_smallest_sizes_that_are_not_rejected_are_drawn(source):
    source.check()
    rng = random.Random(0)
    for _ in range(30):
        assert source.draw(rng).turns
