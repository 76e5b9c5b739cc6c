"""A model directory full of code: none of it runs, whatever loads the model, and nothing calls out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from edgeflow.service.host.preflight import check_model_directory
from edgeflow.text.chat_template import ChatTemplate
from edgeflow_client.errors import CheckpointError, EdgeflowError
from tests.chat_checkpoint import write_chat_checkpoint
from tests.tiny_checkpoint import write_checkpoint

EDGEFLOW = Path(sys.executable).with_name("edgeflow")
START_S = 90.0
NAMES = (
    "modeling_openvla",
    "configuration_openvla",
    "processing_openvla",
    "modeling_qwen2",
    "tokenization",
    "__init__",
    "sitecustomize",
    "json",
    "numpy",
)
AUTO_MAP = {
    "AutoConfig": "configuration_openvla.OpenVLAConfig",
    "AutoModelForVision2Seq": "modeling_openvla.OpenVLAForActionPrediction",
    "AutoModelForCausalLM": "modeling_qwen2.Model",
    "AutoTokenizer": ["tokenization.Tokenizer", None],
    "AutoProcessor": "processing_openvla.Processor",
}
WATCH = """
import os, sys
def told(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"):
        address = arguments[1] if event == "socket.connect" else arguments
        if isinstance(address, tuple):
            log(f"{event} {address!r}")
def log(line):
    with open(os.environ["WATCH_FILE"], "a") as stream:
        stream.write(line + "\\n")
sys.addaudithook(told)
log(f"started {os.getpid()}")
"""


def booby_trap(directory: Path, marker: Path) -> Path:
    """Code in every place where a loader may look for it; each line of it leaves a marker."""
    code = f"from pathlib import Path; Path({str(marker)!r}).touch()\n"
    for name in NAMES:
        (directory / f"{name}.py").write_text(code)
    for name in ("config.json", "tokenizer_config.json", "preprocessor_config.json", "generation_config.json"):
        file = directory / name
        values = json.loads(file.read_text()) if file.exists() else {}
        values |= {"auto_map": AUTO_MAP, "trust_remote_code": True, "custom_pipelines": {"x": {"impl": "modeling.X"}}}
        file.write_text(json.dumps(values))
    evil = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()  # a pickle that runs a command
    for name in ("pytorch_model.bin", "training_args.bin", "model.pt", "norm_stats.pkl"):
        (directory / name).write_bytes(evil)
    return directory


@pytest.fixture(scope="module")
def trapped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Policy, chat model, and the marker that must not appear."""
    folder = tmp_path_factory.mktemp("trapped")
    marker = folder / "marker"
    chat = folder / "chat"
    write_chat_checkpoint(chat, "qwen2")
    return booby_trap(write_checkpoint(folder / "policy"), marker), booby_trap(chat, marker), marker


def watched(folder: Path) -> dict[str, str]:
    """An environment whose Python processes write down where they connect to."""
    (folder / "sitecustomize.py").write_text(WATCH)
    return {**os.environ, "PYTHONPATH": str(folder), "WATCH_FILE": str(folder / "watched"), "HF_HOME": str(folder)}


def outward(folder: Path) -> list[str]:
    lines = (folder / "watched").read_text().splitlines()
    local = ("'127.0.0.1'", "'localhost'", "'::1'")
    return [line for line in lines if not line.startswith("started") and not any(name in line for name in local)]


def test_serving_runs_no_code_of_a_model_and_calls_nobody(trapped: tuple[Path, Path, Path], tmp_path: Path):
    policy, chat, marker = trapped
    ready, errors = tmp_path / "ready.json", tmp_path / "errors"
    settings = {"model": str(policy), "chat": {"model": str(chat)}, "grpc": {"port": 0}, "http": {"port": 0}}
    settings["health"] = settings["frontends"] = {"port": 0}
    (tmp_path / "service.json").write_text(json.dumps(settings))
    command = [str(EDGEFLOW), "serve", "--config", str(tmp_path / "service.json"), "--ready-file", str(ready)]
    with errors.open("w") as stream:
        process = subprocess.Popen(command, cwd=policy, env=watched(tmp_path), stderr=stream)
    try:
        deadline = time.monotonic() + START_S
        while not ready.exists():
            assert process.poll() is None, errors.read_text()
            assert time.monotonic() < deadline, errors.read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert (tmp_path / "watched").read_text().count("started") >= 2, "front and worker were watched"
    assert outward(tmp_path) == []
    assert not marker.exists()


def test_verify_runs_no_code_of_a_model(trapped: tuple[Path, Path, Path], tmp_path: Path):
    policy, _, marker = trapped
    Image.new("RGB", (9, 9)).save(policy / "black.png")
    case = {"name": "one", "image": "black.png", "instruction": "Go", "action_token_ids": [1] * 7}
    save_file({"one.prefill_last_logits": torch.zeros(3)}, policy / "expected.safetensors")
    (policy / "cases.json").write_text(json.dumps({"cases": [case]}))
    command = [str(EDGEFLOW), "verify", str(policy), "--mode", "serial", "--json"]
    result = subprocess.run(command, cwd=policy, env=watched(tmp_path), capture_output=True, text=True, timeout=90)
    assert result.returncode == 1, result.stderr
    assert len(json.loads(result.stdout)) >= 1, "it was loaded and run"
    assert outward(tmp_path) == []
    assert not marker.exists()


def test_the_traps_work(trapped: tuple[Path, Path, Path], tmp_path: Path):
    """Python that does import and unpickle them leaves the marker; the watch sees a connection."""
    policy, _, _ = trapped
    marker = tmp_path / "marker"
    booby_trap(policy, marker)
    code = "import pickle, socket; pickle.load(open('model.pt', 'rb')); socket.socket().connect_ex(('192.0.2.1', 9))"
    environment = watched(tmp_path)
    subprocess.run([sys.executable, "-P", "-c", code], cwd=policy, env=environment, timeout=30, check=False)
    assert marker.exists() and any("192.0.2.1" in line for line in outward(tmp_path))
    marker.unlink()
    subprocess.run([sys.executable, "-c", "import modeling_openvla"], cwd=policy, timeout=30, check=False)
    assert marker.exists()


@pytest.mark.parametrize(
    "attack",
    [
        "{{ cycler.__init__.__globals__.os.system('touch MARKER') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ (messages | attr('__class__')).__mro__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{{ raise_exception.__globals__['__builtins__']['open']('MARKER', 'w') }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_chat_template_cannot_leave_its_sandbox(tmp_path: Path, attack: str):
    marker = tmp_path / "marker"
    with pytest.raises(EdgeflowError):
        ChatTemplate(attack.replace("MARKER", str(marker)), {})([{"role": "user", "content": "hello"}])
    assert not marker.exists()


def test_weights_that_are_a_pickle_are_rejected(trapped: tuple[Path, Path, Path], tmp_path: Path):
    policy, _, marker = trapped
    evil = (policy / "model.pt").read_bytes()
    copy = write_checkpoint(tmp_path / "policy")
    (copy / "model.safetensors").write_bytes(evil)
    with pytest.raises(CheckpointError):
        check_model_directory(copy)
    assert not marker.exists()
