"""The comparison of what is kept of a long prompt."""

import math
import random
import re
import sys

import pytest
import torch
from rich.console import Console

from benchmarks.long_context.__main__ import main
from benchmarks.long_context.cells import (
    EVIDENCE,
    LEAST_LINES,
    Band,
    PromptLayout,
    Question,
    QuestionCell,
    Where,
    cells_of,
    draw_questions,
    evidence,
    opening_tokens,
    question_tokens,
)
from benchmarks.long_context.report import Score, SystemScores, cost_table, evidence_table, exact_table, gain
from benchmarks.long_context.snapkv import OBSERVED, POOL, SnapKV, select
from benchmarks.long_context.systems import ANSWER, Reply, ServedModel, cut, position_bytes
from edgeflow.lab.demo.chat.logs.robot_log import TITLE
from edgeflow.lab.training.gate.plain_base import PlainBase
from edgeflow.lab.training.gate.trainer import initial_gate
from edgeflow.model_paths import EMBEDDED_CHAT_MODEL
from edgeflow.models.chat import load_chat_model
from edgeflow.models.memory_gate import GateRules
from edgeflow_client.errors import ConfigError

CPU = torch.device("cpu")
BAND = Band(500, 700)
SUMMARY = QuestionCell(BAND, Where.COMPRESSED, summary=True)


@pytest.fixture(scope="module")
def model():
    return load_chat_model(EMBEDDED_CHAT_MODEL, torch.float32, CPU)


@pytest.fixture(scope="module")
def base():
    return PlainBase.read(EMBEDDED_CHAT_MODEL, torch.float32, CPU)


def layout(model):
    return PromptLayout(
        sink=32, out_of_reach=250, window=96, opening=opening_tokens(model), question=question_tokens(model)
    )


def lines_of(model, question):
    """The lines of a question's prompt, and the first token of each."""
    text = model.tokenizer.decode(question.ids)
    lines = text[text.index(TITLE) :].split("\n")[1:]
    return [line for line in lines if line[:3].isdigit()]


def test_the_opening_ends_where_the_first_line_begins(model):
    question = next(iter(draw_questions(model, SUMMARY, layout(model), 1, "0")))
    first = lines_of(model, question)[0]
    opening = opening_tokens(model)
    assert model.tokenizer.decode(question.ids[opening : opening + 7]) == f"{first}\n"


def place_of(model, own, question):
    """The first token of the line that a look-up asks about."""
    key = model.tokenizer.decode(question.ids).split("?")[0].split()[-1]
    return own.opening + 7 * next(i for i, each in enumerate(lines_of(model, question)) if key in each.split())


def test_evidence_of_the_compressed_part_lies_between_sink_and_what_any_row_keeps(model):
    own = layout(model)
    for question in draw_questions(model, QuestionCell(BAND, Where.COMPRESSED, summary=False), own, 30, "0"):
        place = place_of(model, own, question)
        assert own.sink <= place and place + 7 <= len(question.ids) - own.out_of_reach


def test_evidence_of_the_kept_part_lies_in_the_window(model):
    own = layout(model)
    for question in draw_questions(model, QuestionCell(BAND, Where.KEPT, summary=False), own, 30, "0"):
        assert place_of(model, own, question) >= len(question.ids) - own.window


def test_a_cell_asks_all_its_kinds_and_the_same_again(model):
    questions = list(draw_questions(model, SUMMARY, layout(model), 8, "0"))
    assert {question.kind for question in questions} == set(SUMMARY.kinds)
    assert questions == list(draw_questions(model, SUMMARY, layout(model), 8, "0"))
    assert all(BAND.shortest - 16 <= len(question.ids) <= BAND.longest for question in questions)
    assert len(cells_of([BAND])) == 4


def test_questions_know_how_many_lines_their_answers_rest_on(model):
    """The value is the answer's last word, or that of the question."""
    for question in draw_questions(model, SUMMARY, layout(model), 40, "0"):
        asked = model.tokenizer.decode(question.ids).split("\n")[-3].partition("?")[0]
        value = question.answer.rstrip(".").split()[-1] if question.kind.startswith("most") else asked.split()[-1]
        assert question.lines == sum(value in line.split() for line in lines_of(model, question))


def test_evidence_is_grouped_by_its_lines():
    lines = {0: "none", 1: "1-5", 5: "1-5", 6: "6-15", 15: "6-15", 16: "16-40", 40: "16-40", 41: "> 40", 600: "> 40"}
    assert {each: evidence(each) for each in lines} == lines
    assert set(lines.values()) == set(EVIDENCE)


def test_the_shortest_band_is_the_first_whose_compressed_part_holds_enough_lines(model):
    own = layout(model)
    own.check(Band(own.shortest, own.shortest))
    sizes = [len(own.region(Where.COMPRESSED, own.lines(own.shortest - less))) for less in (0, 1)]
    assert sizes == [LEAST_LINES, LEAST_LINES - 1]
    list(
        draw_questions(
            model, QuestionCell(Band(own.shortest, own.shortest), Where.COMPRESSED, summary=False), own, 4, "0"
        )
    )
    with pytest.raises(ConfigError, match=rf"band: SHORTEST is at least {own.shortest} .* got {own.shortest - 1}"):
        own.check(Band(own.shortest - 1, 700))


def test_a_prompt_is_cut_in_its_middle():
    assert cut(range(10), 10, 2) == list(range(10))
    assert cut(range(10), 6, 2) == [0, 1, 6, 7, 8, 9]


def test_selection_keeps_sink_window_and_what_the_last_queries_attend_to():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(4, 90, 8, generator=generator), torch.randn(2, 90, 8, generator=generator)
    k[1, 40] = 10 * q[2, -5:].mean(0)
    chosen = select(q, k, places=40, sink=3, window=20)
    for head in range(2):
        assert chosen[head].tolist() == naive_selection(q, k, head, 40, 3, 20)
    assert 40 in chosen[1].tolist()
    assert select(q, k, places=90, sink=3, window=20).tolist() == [list(range(90))] * 2


def naive_selection(q, k, head, places, sink, window):
    length, votes = k.shape[1], [0.0] * k.shape[1]
    for query_head in (2 * head, 2 * head + 1):
        for row in range(length - OBSERVED, length):
            scores = [float(q[query_head, row] @ k[head, key]) / math.sqrt(8) for key in range(row + 1)]
            most = max(scores)
            weights = [math.exp(score - most) for score in scores]
            for key, weight in enumerate(weights):
                votes[key] += weight / sum(weights)
    half = POOL // 2
    pooled = [max(votes[max(0, key - half) : key + half + 1]) for key in range(length)]
    forced = [key for key in range(length) if key < sink or key >= length - window]
    others = sorted((key for key in range(length) if key not in forced), key=lambda key: -pooled[key])
    return sorted(forced + others[: places - len(forced)])


def test_selection_of_everything_answers_as_full_attention(model, base):
    ids = next(iter(draw_questions(model, SUMMARY, layout(model), 1, "0"))).ids
    full = ServedModel(model, 800)
    assert SnapKV(model, base, 800, 32, 96, 0).answer(ids).text == full.answer(ids).text


def test_rows_hold_the_bytes_that_they_are_counted_with(model):
    rules = GateRules(sink=32, window=96, segment=128, positions="local")
    folded = ServedModel(model, 800, gate=initial_gate(model.config, rules, 0))
    memory = 4 * 6 * 32 * 33 * 4
    assert folded.slot_bytes == rules.threshold * position_bytes(model) + memory
    assert ServedModel(model, 100).slot_bytes == 100 * position_bytes(model)
    ids = next(iter(draw_questions(model, SUMMARY, layout(model), 1, "0"))).ids
    reply = folded.answer(ids)
    assert reply.first_s > 0 and len(model.tokenizer.encode(reply.text, special=False)) <= ANSWER


def scored(right, asked, kind="most fault", lines=3):
    score = Score()
    for index in range(asked):
        score.add(Question((), kind, "a", lines), Reply("a" if index < right else "b", 0.1, math.nan))
    return score


def test_a_gain_needs_ten_points_and_intervals_apart():
    assert gain(scored(300, 500), scored(200, 500)).met
    assert not gain(scored(240, 500), scored(200, 500)).met
    assert not gain(scored(6, 10), scored(4, 10)).met


def test_a_score_counts_by_kind_and_by_lines_of_evidence():
    score = scored(3, 4)
    for right, kind, lines in ((True, "ever held", 0), (False, "ever fault", 2), (True, "ever fault", 90)):
        score.add(Question((), kind, "a", lines), Reply("a" if right else "b", 0.1, math.nan))
    assert score.counts() == (5, 7)
    assert (score.counts(of="ever"), score.counts(of="most"), score.counts(lines="1-5")) == ((2, 3), (3, 4), (3, 5))
    told = score.to_json()
    assert told["kinds"] == {"most fault": [3, 4], "ever held": [1, 1], "ever fault": [1, 2]}
    assert told["evidence_lines"]["ever"] == {
        "none": [1, 1],
        "1-5": [0, 1],
        "6-15": [0, 0],
        "16-40": [0, 0],
        "> 40": [1, 1],
    }
    assert told["first_token_ms"] == pytest.approx(100) and told["token_ms"] is None


def rows_of(cells):
    names = ("EdgeInfinite, untrained", "two")
    return [
        SystemScores(name, 1000, {cell: scored(random.Random(0).randint(0, 9), 9) for cell in cells}) for name in names
    ]


def test_the_tables_of_a_band_fit_a_terminal_and_keep_the_names_of_systems():
    cells = [cell for cell in cells_of([Band(500, 600), BAND]) if cell.band == BAND]
    rows = rows_of(cells)
    console = Console(width=80, record=True)
    for table in (exact_table(rows, BAND, cells), evidence_table(rows, cells[0]), cost_table(rows, BAND)):
        assert console.measure(table).minimum <= 80
        console.print(table)
    told = console.export_text()
    assert told.count("EdgeInfinite, untrained") == 4 and told.count("500-700 tokens") == 3
    for title in ("ever", "most", "summary", "look-up", "> 40", "KB a slot"):
        assert title in told
    assert "…" not in told


def test_a_system_that_was_not_asked_has_no_line():
    cells = cells_of([BAND])
    assert exact_table([SystemScores("full", 1, {})], BAND, cells).row_count == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--band 3000 1000", "band: SHORTEST is at most LONGEST, got 3000 1000"),
        ("--band 9000 10000", "band: LONGEST is at most 4200, since a log has up to 600 lines, got 10000"),
        ("--band 100 200", r"band: SHORTEST is at least \d+ with this gate, .* got 100"),
        ("--questions 0", "argument --questions: must be an integer of at least 1, got '0'"),
        ("--look-ups -3", "argument --look-ups: must be an integer of at least 1, got '-3'"),
        ("--kept many", "argument --kept: must be an integer of at least 1, got 'many'"),
        (f"--base {EMBEDDED_CHAT_MODEL}", "base_fingerprint .* belongs to another base"),
    ],
)
def test_options_that_cannot_be_measured_are_rejected(options, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["long_context", *options.split()])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert re.search(message, capsys.readouterr().err)
