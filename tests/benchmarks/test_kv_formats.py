"""The benchmark of KV formats: its measurements, and its verdict on rows below the model's own numbers."""

from __future__ import annotations

import pytest

from benchmarks.kv_formats import __main__ as command


@pytest.mark.parametrize(
    ("given", "measured"),
    [
        ([], ["model", "int8", "int4"]),
        (["--kv", "int4"], ["model", "int4"]),
        (["--kv", "fp8", "--kv", "model", "--kv", "fp8"], ["model", "fp8"]),
    ],
)
def test_the_models_own_numbers_are_always_measured_first(monkeypatch, given: list[str], measured: list[str]):
    monkeypatch.setattr("sys.argv", ["kv_formats", *given])
    assert command._arguments().kv == measured


@pytest.mark.parametrize(("right", "code"), [({"int4": 485}, 0), ({"int4": 484}, 1), ({"int8": 494, "int4": 500}, 1)])
def test_a_row_that_is_further_below_than_its_bar_fails(monkeypatch, capsys, right: dict[str, int], code: int):
    """Among 500 answers, 500 with the model's own numbers: 3 points are 15 with int4, and 1 point is 5 with int8."""

    def answers(kv, questions):
        return command._row(
            "answers", "held-out questions", kv, right.get(kv, 500), questions, 1.0, command.ANSWERS.get(kv, 0.0)
        )

    monkeypatch.setattr(command, "_answers", answers)
    monkeypatch.setattr(command, "keep", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["kv_formats", "--episodes", "0", *(f"--kv={kv}" for kv in right)])
    with pytest.raises(SystemExit) as left:
        command.main()
    assert left.value.code == code
    assert ("missed: " in capsys.readouterr().out) == bool(code)
