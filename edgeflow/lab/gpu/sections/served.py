"""Section: the service end to end: `edgeflow serve`, the load test in its modes, and one question to its chat model.

The policy has random weights and about 560 MB (the embedded one in the suite's own tests); the chat model is the
embedded one. Rates and ages are listed next to the service's forecast for each mode.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

from edgeflow.lab.gpu.section_order import LEFT_OUT, Found
from edgeflow.lab.gpu.section_setting import CLOSING_S, OffError, SectionSetting, SkipError
from edgeflow.lab.gpu.subjects.random_policy import SERVED, write_checkpoint

COMMAND = (sys.executable, "-m", "edgeflow.cli")
IMPORTED = (
    *("fastapi", "grpc", "grpc_health", "grpc_reflection", "jinja2", "llguidance", "msgpack", "prometheus_client"),
    *("pydantic", "rich", "simplejpeg", "typer", "uvicorn"),
)
"""Packages that the commands import in addition to torch, numpy, Pillow, safetensors and tokenizers."""
LOADS = (("serial", 0.0), ("pipelined", 0.0), ("auto", 0.8), ("pipelined", 0.8), ("serial", 0.8))
"""Modes, and the frame rate of each relative to the mode's highest; 0: as fast as frames are answered."""
SMALL_LOADS = LOADS[:3]
WINDOW = {"serial": 1, "pipelined": 8}  # frames in flight in the closed loop: K + 1 keep the pipeline full
PERIOD = "control_period_s=2ms"  # declared in the closed loop, so that no rate limit applies
LONGEST_S, SHORTEST_S = 4.0, 1.0  # of counting
BESIDES_S = 3.0  # duration of a load test besides: its start, its warm-up, the last answers
STOP_S = 10.0
QUESTION = "Where is the handle?"


def service(setting: SectionSetting) -> Found:
    """Run the service. OffError if it does not start, answer or end as it should."""
    if lacking := [name for name in IMPORTED if find_spec(name) is None]:
        raise SkipError(f"this Python lacks {', '.join(lacking)}: see scripts/gpu-wheels and --wheels")
    found: Found = {}
    try:
        with TemporaryDirectory(prefix="gpu-suite-") as folder:
            _serve_and_load(setting, Path(folder), found)
    except OffError as error:
        raise OffError(str(error), found | error.found) from None
    return found


def _serve_and_load(setting: SectionSetting, folder: Path, found: Found) -> None:
    model = "demo" if setting.small else str(_checkpoint(setting, folder / "policy"))
    with _serving(setting, model, folder) as (ready, start_s):
        found |= {"policy": ready["model"], "device": ready["device"], "chat": ready["chat"], "start s": start_s}
        names = ("mode", "frames/s", "mean age ms")
        found |= {"foretold": [dict(zip(names, each, strict=True)) for each in ready["forecasts"]], "loads": []}
        setting.publish(found)
        found |= _asked(ready["http_port"], setting.left_s)
        _load(setting, ready, found)


def _checkpoint(setting: SectionSetting, folder: Path) -> Path:
    path = write_checkpoint(SERVED, folder, setting.device, setting.dtype)
    setting.release()
    return path


@contextmanager
def _serving(setting: SectionSetting, model: str, folder: Path) -> Iterator[tuple[Found, float]]:
    """Start a separate service; yield its output when ready, and the seconds until then. Its exit is checked too."""
    config = {
        "model": model,
        "device": setting.device.type,
        "grpc": {"port": 0},
        "http": {"port": 0},
        "health": {"port": 0},
        "frontends": {"port": 0},
        "limits": {"rate_hz": 1000.0},
        "standby": False,
    }
    path, log = folder / "service.json", folder / "service.log"
    path.write_text(json.dumps(config))
    started = monotonic()
    with log.open("w") as stream:
        process = Popen([*COMMAND, "serve", "--config", str(path), "--json"], stdout=stream, stderr=stream)
    try:
        yield _ready(setting, process, log), monotonic() - started
        code = _stopped(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if code != 0:
        raise OffError(f"the service ended with exit code {code}: {_last_line(log.read_text())}", {})


def _ready(setting: SectionSetting, process: Popen[bytes], log: Path) -> Found:
    while setting.left_s > 0:
        for line in log.read_text().splitlines():
            if '"phase": "ready"' in line:
                ready: Found = json.loads(line)
                return ready
        if process.poll() is not None:
            raise OffError(f"the service did not start: {_last_line(log.read_text())}", {})
        sleep(0.05)
    raise OffError(f"the service was not ready in time{_step(log)}", {})


def _step(log: Path) -> str:
    """The progress of the service's start, from its last status."""
    states = [json.loads(line) for line in log.read_text().splitlines() if '"phase": ' in line]
    return f"; it was at: {states[-1]['phase']}, {states[-1]['step']}" if states else ""


def _stopped(process: Popen[bytes]) -> int | None:
    """The exit code after SIGTERM; None if it did not end."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_S)
    except TimeoutExpired:
        return None


def _asked(port: int, timeout_s: float) -> Found:
    """The embedded chat model's answer to one question."""
    body = {"model": "demo-chat", "messages": [{"role": "user", "content": QUESTION}]}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=max(timeout_s, 1.0))
    started = monotonic()
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        answer: Any = json.load(response)
    except (OSError, ValueError) as error:
        raise OffError(f"chat did not answer: {error}", {}) from None
    finally:
        connection.close()
    if response.status != HTTPStatus.OK:
        raise OffError(f"chat answered with HTTP {response.status}: {answer}"[:300], {})
    text, tokens = answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]
    if not text:
        raise OffError("chat answered with nothing", {})
    return {"question": QUESTION, "answer": text, "answer tokens": tokens, "answer s": monotonic() - started}


def _last_line(text: str) -> str:
    """The last line of a command's errors, which names the problem."""
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("edgeflow: ")[:300] if lines else ""


def _load(setting: SectionSetting, ready: Found, found: Found) -> None:
    """A row per load, in order; loads without enough time are listed."""
    highest: dict[str, float] = {}
    besides_s = BESIDES_S
    loads = SMALL_LOADS if setting.small else LOADS
    foretold = {each["mode"]: each for each in found["foretold"]}
    for index, (mode, share) in enumerate(loads):
        rate = _rate(mode, share, highest)
        if rate is None or setting.left_s < SHORTEST_S + besides_s:
            found.setdefault(LEFT_OUT, []).append(f"{mode} at {share:.0%}" if share else mode)
            continue
        seconds = min(LONGEST_S, max(SHORTEST_S, setting.left_s / (len(loads) - index) - besides_s))
        started = monotonic()
        row = _row(_report(setting, ready["grpc_address"], mode, rate, seconds), mode, rate)
        besides_s = max(BESIDES_S, monotonic() - started - seconds)
        if not rate:
            highest[mode] = row["frames/s"]
            row |= {"foretold frames/s": foretold[mode]["frames/s"]}
        found["loads"].append(row)
        setting.publish(found)


def _rate(mode: str, share: float, highest: dict[str, float]) -> float | None:
    """Frames per second of a load; 0 for the closed loop, None if the rate it is relative to is unknown."""
    return share * highest.get(mode, highest.get("pipelined", 0.0)) or (None if share else 0.0)


def _report(setting: SectionSetting, address: str, mode: str, rate: float, seconds: float) -> Found:
    """The load test's own report; OffError if it could not run or robots were rejected."""
    plan = [f"pattern.rate_hz={rate:.3f}"] if rate else [f"pattern.window={WINDOW[mode]}", f"session.{PERIOD}"]
    plan += ["warm_up_s=0.5", "ramp_up_s=0.1", f"duration_s={seconds:.2f}", f"session.mode={mode}"]
    options = [word for each in plan for word in ("--set", each)]
    try:
        command = [*COMMAND, "loadtest", address, *options, "--json"]
        limit_s = max(setting.left_s + CLOSING_S, 0.0)
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except TimeoutExpired:
        raise OffError(f"the load test in mode {mode} did not end", {}) from None
    if done.returncode:
        raise OffError(f"the load test in mode {mode} failed: {_last_line(done.stderr)}", {})
    report: Found = json.loads(done.stdout)
    refused = [text for text in report["refusals"] if text]
    if refused or not report["total"]["frames"]["acted"]:
        raise OffError(f"no action in mode {mode}: {'; '.join(refused)}", report["total"]["frames"])
    return report


def _row(report: Found, mode: str, rate: float) -> Found:
    """One row of the table. Forecasts are left out of closed loops: they are for another rate."""
    total, frames = report["total"], report["total"]["frames"]
    (foretold,) = report["predictions"]
    row = {
        "mode": foretold["mode"] if foretold else mode,
        "frames come": f"{rate:.1f} per s" if rate else f"{WINDOW[mode]} under way",
        "frames/s": total["fps"],
        "foretold frames/s": foretold["fps"] if foretold and rate else None,
        "mean age ms": total["service_ms"]["mean"],
        "foretold age ms": foretold["age_ms"] if foretold and rate else None,
        "age p50": total["age_ms"]["p50"],
        "age p99": total["age_ms"]["p99"],
        "interval jitter ms": total["jitter_ms"],
        "pass p99 / p50": total["pass_jitter"],
    }
    lost = {"superseded": frames["superseded"], **frames["rejected"], **frames["dropped"], **frames["unanswered"]}
    return {**row, "not acted": ", ".join(f"{name} {count}" for name, count in lost.items() if count)}
