"""`edgeflow demo`, whole, through the command line: a separate service, the modes of its policy, the report."""

from __future__ import annotations

import io
import json
import os
import re
import threading

import pytest
from rich.console import Console
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.lab.demo.command import open_page
from edgeflow.model_paths import EMBEDDED_FLOW_POLICY, EMBEDDED_POLICY
from edgeflow_client.errors import CheckpointError, ConfigError
from tests.cases import by_night
from tests.service.front_process import wait_for

TOKENS, CHUNKS = {"serial", "pipelined", "speculative"}, {"serial", "pipelined"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], TOKENS),
        by_night(["--policy", "flow"], CHUNKS),
        by_night(["--model", str(EMBEDDED_POLICY)], TOKENS),
        (["--model", str(EMBEDDED_FLOW_POLICY)], CHUNKS),
    ],
    ids=["tokens", "flow", "directory of tokens", "directory of flow"],
)
def test_the_demonstration_runs_to_its_end(options, expected, tmp_path):
    out = tmp_path / "demo-report"
    printed = demo("--seconds", "1", "--speed", "0", "--profile", "none", "--out", str(out), *options)
    report = json.loads((out / "report.json").read_text())
    modes = {mode["mode"]: mode for mode in report["modes"]}
    assert set(modes) == expected and len(report["modes"]) == len(expected)
    for mode in modes.values():
        assert mode["episodes"] >= 1
        assert mode["summary"]["age_ms"]["p50"] > 0
    for name, counts in report["conditions"]["statistics"].items():
        left = counts["acted"] + counts["superseded"] + counts["rejected"] + counts["dropped"]
        assert counts["offered"] == left + counts["in_flight"]
        assert counts["rejected"] == 0
        assert counts["acted"] >= 1, "beside a busy machine a robot rests, and gets few answers"
        unplayed = counts["late"] - counts["late_played"]
        received = counts["actions"] + counts["ignored"] + counts["too_old"] + unplayed
        assert counts["acted"] <= received  # an action comes before its frame's ACTED
        assert 1 <= modes[name]["summary"]["actions"] <= counts["actions"]
    assert {path.suffix for path in out.iterdir()} == {".json", ".png"}
    assert re.search(r"^live page while it runs: http://127\.0\.0\.1:\d+/$", printed, re.MULTILINE)
    assert report["verdict"][:40] in printed and "pipelined" in printed
    if "speculative" in expected:
        assert 1 <= report["conditions"]["passes_per_action"]["speculative"] < 7
    ours = [thread.name for thread in threading.enumerate() if thread.name.startswith(("edgeflow-", "service-"))]
    assert ours == []


@pytest.mark.parametrize(
    ("kind", "directory", "named"),
    [
        ("tokens", EMBEDDED_FLOW_POLICY, "smolvla, with the modes serial, pipelined"),
        ("flow", EMBEDDED_POLICY, "openvla, with the modes serial, pipelined, speculative"),
    ],
)
def test_a_checkpoint_of_another_kind_than_is_named_is_rejected(kind, directory, named, tmp_path):
    with pytest.raises(ConfigError, match=rf"^policy: .* is of the family {named}, not of the kind"):
        demo("--model", str(directory), "--policy", kind, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")  # the opener is not waited for
def test_the_page_opens_where_there_is_a_display(tmp_path, monkeypatch):
    opened, page = tmp_path / "opened", "http://127.0.0.1:1/"
    opener = tmp_path / "xdg-open"
    opener.write_text(f'#!/bin/sh\necho "$1" > {opened}.new && mv {opened}.new {opened}\n')
    opener.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    for display, shown in (("", False), (":0", True)):
        monkeypatch.setenv("DISPLAY", display)
        text = io.StringIO()
        open_page(page, Console(file=text))
        assert ("there is no display" in text.getvalue()) is not shown
    wait_for(opened.exists)
    assert opened.read_text() == f"{page}\n"


def test_a_checkpoint_that_no_family_recognises_is_rejected(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no model_type and no type"):
        demo("--model", str(tmp_path))


def demo(*options: str) -> str:
    result = CliRunner().invoke(app, ["demo", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return str(result.stdout)
