"""The commands as a user types them."""

from __future__ import annotations

import json
import re
import resource
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from edgeflow.cli import app
from edgeflow.commands import doctor
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import StageProgram
from edgeflow.engine.control.engine import PolicyEngine
from edgeflow.engine.control.offline import decode_serially
from edgeflow.engine.policy import PreparedFrame
from edgeflow.lab.openvla_policy import load_openvla
from edgeflow.scheduler.pace import paces_of
from edgeflow_client.errors import ConfigError
from edgeflow_client.loadtest.chat_clients import ChatLoad
from edgeflow_client.types import CameraSpec, ImageFormat, Mode
from tests.tiny_checkpoint import write_checkpoint

ROOT = Path(__file__).parents[1]
START_LIMIT_S = 15.0  # of processor time on a slow machine: gateway and chat front load beside the worker


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgeflow.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=cwd, check=False)


def computed_s() -> float:
    """CPU time of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


COMMANDS = [
    "serve",
    "health",
    "robot",
    "demo",
    "verify",
    "eval-demo",
    "train-demo",
    "cosim",
    "doctor",
    "config",
    "config schema",
    "token new",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_there(command: str):
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.stdout and command.split()[-1] in result.stdout


@pytest.mark.parametrize("command", [name for name in COMMANDS if " " not in name and name != "config"] + ["loadtest"])
def test_at_80_columns_the_texts_of_options_have_at_least_40(command: str):
    """A column of types or limits that is wide leaves a narrow strip for the texts."""
    text = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"}).stdout
    options = [line for line in text.splitlines() if re.match(r"│ (\* )? *--", line)]
    starts = [re.search(r"\S  +(?=\S+(?: \S+)* *│$)", line) for line in options]
    assert options and all(start is not None and 78 - start.end() >= 40 for start in starts)


@pytest.mark.parametrize(
    ("shell", "said"),
    [
        ('exec "$0" -m edgeflow.cli config schema > /dev/full', "edgeflow: No space left on device\n"),
        ('exec "$0" -m edgeflow.cli --version > /dev/full', "edgeflow: No space left on device\n"),
        ('exec "$0" -m edgeflow.cli config schema > /dev/full 2>&1', ""),
    ],
)
def test_an_error_of_the_system_takes_one_line(shell: str, said: str):
    done = subprocess.run(["sh", "-c", shell, sys.executable], cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("-v 400000", "ulimit -v is 400000 KiB, and the service needs at least 1048576: raise the limit"),
        ("-s 256", "ulimit -s is 256 KiB, and the service needs at least 1024: raise the limit"),
        ("-n 24", "ulimit -n is 24, and the service needs at least 48: raise the limit"),
    ],
)
def test_a_limit_with_which_no_service_starts_is_reported(limit: str, said: str):
    command = ["sh", "-c", f'ulimit {limit}; exec "$0" -m edgeflow.cli serve', sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, failure(done)) == (2, said)


def test_closed_standard_streams_are_replaced():
    """Their numbers go to no other file."""
    code = """
import os, sys
from edgeflow_client.loadtest.terminal import open_standard_streams
open_standard_streams()
print("to nobody")
print("to nobody", file=sys.stderr)
same = [os.path.samestat(os.fstat(number), os.stat(os.devnull)) for number in (0, 1, 2)]
sys.exit(0 if same == [True, True, True] and not sys.stdin.read() else 1)
"""
    done = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code], timeout=60)
    assert done.returncode == 0


def test_the_program_lists_its_commands():
    told = run("--help").stdout
    assert all(command.split()[0] in told for command in COMMANDS)


def test_the_schema_names_every_key():
    schema = json.loads(run("config", "schema").stdout)
    assert {"model", "mode", "shift", "grpc", "http", "limits", "profile"} <= set(schema["properties"])


def test_a_checked_configuration_is_printed_with_its_defaults(tmp_path):
    path = tmp_path / "service.json"
    path.write_text('{"mode": "serial"}')
    values = json.loads(run("config", "check", str(path)).stdout)
    assert (values["mode"], values["shift"]) == ("serial", "rotate")


def failure(served: subprocess.CompletedProcess[str]) -> str:
    """The text of the one line about it, in a log that is JSON only."""
    (told,) = [line["text"] for line in map(json.loads, served.stderr.splitlines()) if line["event"] == "failed"]
    return told


@pytest.mark.parametrize(
    ("files", "arguments", "words"),
    [
        ({}, ["--model", "nowhere/at/all"], ["nowhere/at/all"]),
        ({"m/config.json": "{"}, ["--model", "m"], ["config.json"]),
        ({"m/config.json": '{"model_type": "bert"}'}, ["--model", "m"], ["bert"]),
        ({"c.json": '{"grpc": {"prot": 1}}'}, ["--config", "c.json"], ["grpc.prot", "grpc.port"]),
        ({"c.json": '{"max_sessions": 0}'}, ["--config", "c.json"], ["max_sessions", "1"]),
        ({"c.json": "not json"}, ["--config", "c.json"], ["c.json"]),
        ({}, ["--grpc-host", "0.0.0.0"], ["grpc.host", "insecure"]),
        ({}, ["--profile", "orinn"], ["orinn"]),
        ({}, ["--model", "two\nlines"], ["two lines"]),
        ({}, ["--ready-file", "nowhere/ready.json"], ["ready_file", "nowhere"]),
        ({}, ["--device", "tpu"], ["device", "tpu"]),
        ({}, ["--set", "grpc.prot=1"], ["grpc.prot: unknown key; did you mean grpc.port?"]),
        ({}, ["--set", "max_sessions=0"], ["max_sessions: 0 should be greater than or equal to 1"]),
        ({}, ["--set", "decode_threads=many"], ['decode_threads: "many" should be a valid integer']),
        ({}, ["--set", "grpc.port=1"], ["grpc.port: is given twice"]),
        ({}, ["--set", "depth"], ["set: 'depth' is not KEY=VALUE"]),
    ],
    ids=[
        "no-directory",
        "broken-json",
        "foreign",
        "unknown-key",
        "limit",
        "no-json",
        "off-loopback",
        "profile",
        "two-lines",
        "ready-file",
        "device",
        "set-unknown-key",
        "set-limit",
        "set-type",
        "set-twice",
        "set-no-value",
    ],
)
def test_a_failed_start_prints_one_line_and_exits_with_code_2(
    tmp_path, files: dict[str, str], arguments: list[str], words: list[str]
):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    ports = ["--grpc-port", "0", "--http-port", "0", "--health-port", "0", "--robots-port", "0"]
    before_s = computed_s()
    result = run("serve", *ports, *arguments, cwd=tmp_path)
    assert computed_s() - before_s < START_LIMIT_S
    assert result.returncode == 2
    told = failure(result)
    for word in words:
        assert word in told


@pytest.mark.parametrize("flag", ["--grpc-port", "--http-port", "--health-port"])
def test_a_busy_port_is_reported(flag: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = dict.fromkeys(("--grpc-port", "--http-port", "--health-port", "--robots-port"), "0") | {flag: port}
        result = run("serve", *[word for each in ports.items() for word in each])
    assert result.returncode == 2
    assert port in failure(result)


def test_verify_needs_a_bundle(tmp_path):
    result = run("verify", str(tmp_path))
    assert result.returncode == 2
    assert "config.json" in result.stderr


def test_verify_lists_the_failed_comparisons(tmp_path):
    directory = write_checkpoint(tmp_path / "bundle")
    policy = load_openvla(directory, torch.float32, torch.device("cpu"))
    image = np.zeros((9, 12, 3), np.uint8)
    Image.fromarray(image).save(directory / "black.png")
    frame = PreparedFrame(policy.preprocess(image), policy.prompt_ids("Go"))
    (decoded,) = decode_serially(PolicyEngine(policy, policy.K, 64), [frame])
    cases = [
        {"name": name, "image": "black.png", "instruction": "Go", "action_token_ids": list(decoded.sampled.token_ids)}
        for name in ("first", "[b]econd")
    ]
    save_file({"first.prefill_last_logits": torch.zeros(3)}, directory / "expected.safetensors")
    cases[1]["action_token_ids"][3] += 1
    (directory / "cases.json").write_text(json.dumps({"cases": cases}))
    result = run("verify", str(directory), "--mode", "serial")
    assert result.returncode == 1
    off = [line.split("│")[2:4] for line in result.stdout.splitlines() if "│off " in line]
    assert [[part.strip() for part in line] for line in off] == [
        ["first", "prefill logits"],
        ["[b]econd", "action tokens"],
    ]
    assert "2 of 3 comparisons are off" in result.stdout
    told = CliRunner().invoke(app, ["verify", str(directory), "--mode", "auto", "--json"])
    rows = json.loads(told.stdout, parse_constant=pytest.fail)
    assert Counter(row["mode"] for row in rows) == dict.fromkeys(paces_of(StageProgram.tokens(policy.K)), 3)
    assert rows[0]["deviation"] is None and not rows[0]["ok"]


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("robot 127.0.0.1:1", "edgeflow.lab.demo.command.robot_command"),
        ("loadtest 127.0.0.1:1", "edgeflow_client.loadtest.command.loadtest_command"),
    ],
)
def test_the_default_mode_is_the_services(monkeypatch, command: str, target: str):
    given: list[object] = []

    def take(*arguments: object, **_: object) -> int:
        given.extend(getattr(each, "session", each) for each in arguments)
        return 0

    monkeypatch.setattr(target, take)
    assert CliRunner().invoke(app, command.split()).exit_code == 0
    assert [each.mode for each in given if hasattr(each, "mode")] == [None]


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("serve --set tolerance_bins=1 --set max_passes=3", "edgeflow.service.run.run_service"),
        ("robot 127.0.0.1:1 --tolerance-bins 1 --max-passes 3", "edgeflow.lab.demo.command.robot_command"),
    ],
)
def test_options_set_the_verification_of_drafts(monkeypatch, command: str, target: str):
    given: list[object] = []

    def take(*arguments: object, **_: object) -> int:
        given.extend(each for each in arguments if hasattr(each, "mode"))
        return 0

    monkeypatch.setattr(target, take)
    result = CliRunner().invoke(app, [*command.split(), "--mode", "speculative"])
    assert result.exit_code == 0, result.output
    (plan,) = given
    assert (plan.mode, plan.tolerance_bins, plan.max_passes) == (Mode.SPECULATIVE, 1, 3)


def test_settings_reach_the_configuration(monkeypatch, tmp_path):
    """Over the file's, as JSON or text; null removes what the file sets."""
    given: list[ServiceConfig] = []
    monkeypatch.setattr("edgeflow.service.run.run_service", lambda config, *_, **__: given.append(config) or 0)
    (tmp_path / "c.json").write_text('{"max_sessions": 4, "grpc": {"port": 1}, "alias": "arm"}')
    settings = [
        "max_sessions=null",
        "tls.cert=a=b.pem",
        "tls.key=k.pem",
        'http.names=["robots.local"]',
        "standby=false",
    ]
    words = [word for each in settings for word in ("--set", each)]
    result = CliRunner().invoke(app, ["serve", "--config", str(tmp_path / "c.json"), "--mode", "serial", *words])
    assert result.exit_code == 0, result.output
    (config,) = given
    assert (config.max_sessions, config.standby, config.mode) == (None, False, "serial")
    assert (config.tls.cert, config.http.names, config.grpc.port, config.alias) == (
        "a=b.pem",
        ["robots.local"],
        1,
        "arm",
    )


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("serve --depth 3", "--depth: is not an option; write --set depth=VALUE"),
        ("serve --tls-client-ca x", "--tls-client-ca: is not an option; write --set tls.client_ca=VALUE"),
        ("serve --tokens x", "--tokens: is not an option; write --set tokens_file=VALUE"),
        ("serve --chat-operators x", "--chat-operators: is not an option; write --set chat.operators=VALUE"),
        ("serve --weights fp8", "--weights: is not an option; write --set weights=VALUE"),
        ("chat --draft lookup", "--draft: is not an option; write --set chat.draft=VALUE"),
        ("chat --eagle3 x", "--eagle3: is not an option; write --set chat.eagle3.model=VALUE"),
        ("chat --gate x", "--gate: is not an option; write --set chat.long.gate=VALUE"),
        ("chat --capacity=64", "--capacity: is not an option; write --set chat.capacity=VALUE"),
        ("chat --set draft=lookup", "draft: `edgeflow chat` reads device and the keys of chat, such as chat.capacity"),
        ("chat --set chat.capacity=1", "chat.capacity: 1 should be greater than or equal to 16"),
    ],
)
def test_an_unknown_option_names_the_setting_of_the_service_or_of_chat(typed: str, told: str):
    result = CliRunner().invoke(app, typed.split())
    assert isinstance(result.exception, ConfigError) and result.exception.text == told


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("--depth 3", "--depth: is not an option; write --set session.depth=VALUE"),
        ("--warm-up 1s", "--warm-up: is not an option; write --set warm_up_s=VALUE"),
        ("--min-fps=10", "--min-fps: is not an option; write --set limits.min_fps=VALUE"),
        ("--chat-clients 2", "--chat-clients: is not an option; write --set chat.clients=VALUE"),
        ("--ramp 5:60", "--ramp: is not an option; write --set pattern.first_hz=HZ --set pattern.last_hz=VALUE"),
        ("--set robots", "set: 'robots' is not KEY=VALUE"),
        ("--set robots=2 --robots 3", "robots: is given twice"),
        ("--set session.deep=3", "session.deep: unknown key; known: .*"),
        ("--rate 20 --set pattern.window=3", "pattern: rate_hz, window are not of one pattern; .*"),
    ],
)
def test_an_unknown_option_names_the_setting_of_the_load_test(typed: str, told: str):
    result = CliRunner().invoke(app, ["loadtest", "127.0.0.1:1", *typed.split()])
    assert isinstance(result.exception, ConfigError) and re.fullmatch(told, result.exception.text)


def test_an_option_without_such_a_setting_is_a_usage_error():
    result = CliRunner().invoke(app, ["loadtest", "127.0.0.1:1", "--nonsense"])
    assert result.exit_code == 2 and "--nonsense" in result.output


def test_the_settings_of_a_load_test_reach_its_plan(monkeypatch):
    given: list[object] = []
    monkeypatch.setattr(
        "edgeflow_client.loadtest.command.loadtest_command",
        lambda plan, limits, _, chat, **__: given.extend((plan, limits, chat)) or 0,
    )
    options = "--rate 20 --max-age-p99 80ms --set limits.max_misses=0 --mode speculative --set session.max_passes=3"
    options += " --set seed=5 --set chat.max_tokens=8 --cameras wrist:96x96 --format rgb8"
    assert CliRunner().invoke(app, ["loadtest", "robot.local:50051", *options.split()]).exit_code == 0
    plan, limits, chat = given
    assert (plan.session.mode, plan.session.max_passes, plan.session.control_period_s) == (Mode.SPECULATIVE, 3, 0.05)
    assert plan.seed == 5 and plan.session.cameras == (CameraSpec("wrist", 96, 96, ImageFormat.RGB8),)
    assert limits == {"max-age-p99": 80.0, "max-misses": 0.0}
    assert chat == ChatLoad("http://robot.local:8000", 1, 8)


def test_doctor_prints_json():
    findings = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert {"Python", "torch", "FlashInfer", "headless rendering"} <= {finding["subject"] for finding in findings}


def test_doctor_names_the_extras():
    assert "extra [demo]" in run("doctor").stdout


@pytest.mark.parametrize(
    ("module", "verdict", "found"),
    [
        ("", doctor.CheckOutcome.OK, "installed"),
        ("import no_such_part", doctor.CheckOutcome.OPTIONAL, "needs no_such_part; other operators serve"),
        (
            "raise OSError('libcuda.so.1 is not there')",
            doctor.CheckOutcome.OPTIONAL,
            "does not import: libcuda.so.1 is not there",
        ),
    ],
)
def test_doctor_says_why_flashinfer_cannot_be_used(tmp_path, monkeypatch, module, verdict, found):
    (tmp_path / "flashinfer.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "flashinfer", raising=False)
    (finding,) = doctor._flashinfer()
    sys.modules.pop("flashinfer", None)
    assert finding.verdict is verdict and found in finding.found
    assert ("constraints/cuda.txt" in finding.advice) is (verdict is doctor.CheckOutcome.OPTIONAL)
