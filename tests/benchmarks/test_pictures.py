"""The pictures of the result files: whole, with their conditions, and honest about what was not run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.pictures import __main__ as pictures
from edgeflow_client.errors import ConfigError
from tests.cases import by_night
from tests.drawn import drawn, said

__all__ = ["drawn"]  # a fixture here too

COMMITTED = {
    "closed-loop-cpu-2026-11-22": ["camera 20 Hz, 95 % intervals", "pass times of an AGX Orin, emulated"],
    "closed-loop-figures-cpu-2026-11-22": ["objects at 5 cm/s", "100 % of the actions have unverified tokens"],
    "executions-cpu-2026-11-26": ["objects at 2.5 cm/s", "orin-smolvla\n388 ms", "fresh"],
    "long-context-cpu-2026-11-24": ["prompts of 1000-2030 tokens", "look-ups; 400 questions", "exact answers, %"],
    "long-context-far-cpu-2026-11-24": ["prompts of 2500-4000 tokens"],
    "long-context-speed-cpu-2026-11-23": ["qwen2.5-0.5b in bfloat16", "slot, MiB"],
    "metaworld-cpu-2026-11-22": ["500 episodes per bar", "without delay: 98.2 %"],
    "soak-cpu-2026-11-21": ["4 robots at 25 frames per second", "control", "limit"],
    "static-graphs-latency-cpu-2026-11-24": ["2 cores of Intel(R) Xeon(R) Processor", "2048/64"],
    "sweep-cpu-2026-11-25": ["2 threads", "allowed by pass times"],
}
BY_NIGHT = ("long-context-far", "long-context-speed", "static-graphs")


def result(name: str) -> dict[str, Any]:
    return json.loads((pictures.RESULTS / f"{name}.json").read_text())


def test_every_committed_picture_is_one_of_these():
    assert {path.stem for path in pictures.RESULTS.glob("*.png")} == set(COMMITTED)


@pytest.mark.parametrize(
    ("name", "texts"),
    [by_night(*case) if case[0].startswith(BY_NIGHT) else case for case in COMMITTED.items()],
)
def test_every_result_is_drawn_whole(name: str, texts: list[str], tmp_path, drawn):
    pictures.draw_of(f"{name}.json")(tmp_path / f"{name}.png", result(name))
    figure = drawn[f"{name}.png"]
    assert all(text in said(figure) for text in texts)
    assert not any(axes.patches and axes.get_yscale() == "log" for axes in figure.axes), "a bar needs a zero"


def test_what_was_not_run_is_not_drawn_as_zero(tmp_path, drawn):
    report = result("closed-loop-cpu-2026-11-22")
    rows = [row for row in report["conditions"] if row["profile"] == "this machine"]
    pictures.draw_of("closed-loop.json")(tmp_path / "a.png", {**report, "conditions": rows})
    assert "not run" not in said(drawn["a.png"]), "no mode is missing"
    ran = [row for row in report["conditions"] if (row["profile"], row["mode"]) != ("orin", "serial")]
    pictures.draw_of("closed-loop.json")(tmp_path / "b.png", {**report, "conditions": ran})
    assert said(drawn["b.png"]).count("not run") == 3 + 4, "serial at three speeds; four modes on this machine"


def test_the_command_draws_the_files_it_is_given(tmp_path, monkeypatch, capsys):
    file = tmp_path / "sweep-cpu.json"
    file.write_text(json.dumps(result("sweep-cpu-2026-11-25")))
    monkeypatch.setattr("sys.argv", ["pictures", str(file)])
    pictures.main()
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG") and "written: " in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"chat-cpu\.json: has no picture; files with one begin with closed-loop"):
        pictures.draw_of("chat-cpu.json")
