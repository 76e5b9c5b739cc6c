"""The benchmarks of robots' own clients: their parts, and one section as small as it gets."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from benchmarks.chaos.service import ROOT
from benchmarks.front_ends import bad_bodies, bad_messages
from benchmarks.front_ends.__main__ import SECTIONS
from benchmarks.front_ends.bad_frames import act_body, act_problem, error_problem, refusal_problem
from benchmarks.front_ends.openpi_robot import DIMS, HORIZON, DistinctObservations, is_right, rows
from edgeflow.service.frontends.numpy_json import answer_body
from edgeflow.service.frontends.numpy_msgpack import ArrayCoding, pack
from tests.fuzz.websocket_frames import BINARY, TEXT, frame


def test_every_section_has_a_module_and_an_unknown_one_is_rejected():
    assert all(import_module(f"benchmarks.front_ends.{name.replace('-', '_')}").main for name in SECTIONS)
    command = [sys.executable, "-m", "benchmarks.front_ends", "nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "round-trip" in done.stdout


@pytest.mark.night
def test_round_trips_are_measured(tmp_path: Path):
    path = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.front_ends", "round-trip", "--count", "8", "--rounds", "2"]
    done = subprocess.run([*command, "--warm-up", "1", "--json", str(path)], cwd=ROOT, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert len(report["samples"]["took_ms"]["this service"]) == 8
    assert {"date", "cpu", "cores", "load_average", "commit"} <= set(report)


def test_observations_differ_and_only_the_right_answer_is_right():
    scene = DistinctObservations(0, 8)
    seen = []
    for _ in range(3):
        scene.change()
        seen.append((scene.message(), pack({"actions": scene.chunk().astype(np.float32)}, ArrayCoding.OPENPI)))
    assert len({message for message, _ in seen}) == 3
    assert [is_right(reply, scene) for _, reply in seen] == [False, False, True]
    assert rows(seen[0][1]).shape == (HORIZON, DIMS)
    assert rows("HOLD QUEUE_FULL: busy") is None and not is_right("HOLD QUEUE_FULL: busy", scene)
    assert rows(pack({"status": "ok"}, ArrayCoding.OPENPI)) is None


def test_a_rejection_names_its_field_and_is_not_an_action():
    action = pack({"actions": np.zeros((HORIZON, DIMS), np.float32)}, ArrayCoding.OPENPI)
    assert refusal_problem("REJECTED BODY_FIELD: endpoint: must be infer or reset", "endpoint") == ""
    assert refusal_problem("REJECTED BODY_FIELD: type: must be infer or reset", "endpoint")
    assert refusal_problem("Traceback (most recent call last)", "")
    assert refusal_problem(action, "") == "an action"
    error = json.dumps({"error": {"message": "image: must be [height, width, 3]", "param": "image"}}).encode()
    assert error_problem(400, error, "image") == ""
    assert error_problem(400, error, "state") and error_problem(200, error, "image")
    assert error_problem(400, b'"error"', "") and error_problem(400, b"[1]", "")


def test_the_action_of_another_observation_is_seen():
    scene = DistinctObservations(1, 8)
    body = answer_body(list(scene.chunk()), False)
    assert act_problem(200, body, scene) == ""
    scene.change()
    assert act_problem(200, body, scene) and act_problem(503, b"{}", scene)


@pytest.mark.parametrize("seed", range(3))
def test_every_bad_kind_differs_from_what_it_is_made_of(seed: int):
    scene = DistinctObservations(seed, 8)
    good = json.dumps(act_body(scene)).encode()
    for name, message in bad_messages.KINDS.items():
        made = [message.make(scene.observation(), random.Random(seed)) for _ in range(2)]
        assert made[0] == made[1] != scene.message(), name
    for name, body in bad_bodies.KINDS.items():
        made = [body.make(act_body(scene), random.Random(seed)) for _ in range(2)]
        assert made[0] == made[1] != good, name


@pytest.mark.parametrize("size", [1, 125, 126, 65_535, 65_536])
def test_a_raw_message_is_that_of_the_library(size: int):
    from websockets.frames import Frame, Opcode

    data = random.Random(size).randbytes(size)
    for kind, code in ((BINARY, Opcode.BINARY), (TEXT, Opcode.TEXT)):
        plain = Frame(code, data).serialize(mask=False)
        masked = frame(data, kind)
        assert masked[0] == plain[0] and masked[-size:] == plain[-size:]
        assert len(masked) == len(plain) + 4 and masked[1] == plain[1] | 0x80
