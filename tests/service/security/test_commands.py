"""Tokens and warnings as a person at a terminal meets them."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from edgeflow.service.security.auth import digest
from tests.service.protected import Authority


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("edgeflow")), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_a_token_is_printed_once_and_its_hash_kept(tmp_path: Path):
    told = run("token", "new", "--principal", "arm-1", "--role", "control", "--role", "observe", cwd=tmp_path)
    assert (told.returncode, told.stderr) == (0, "")
    (entry,) = json.loads((tmp_path / "tokens.json").read_text())
    assert entry == {"principal": "arm-1", "sha256": digest(told.stdout.strip()), "roles": ["control", "observe"]}
    rejected = run("token", "new", "--principal", "arm-1", "--role", "king", cwd=tmp_path)
    assert (rejected.returncode, rejected.stderr.count("\n")) == (2, 1) and "roles" in rejected.stderr
    assert len(json.loads((tmp_path / "tokens.json").read_text())) == 1


def test_a_token_s_own_file_is_private_and_never_replaced(tmp_path: Path):
    """Also with a umask that lets everybody read."""
    ask = ("token", "new", "--principal", "arm-1", "--role", "control", "--out", "arm-1.token")
    written = run(*ask, cwd=tmp_path)
    assert (written.returncode, written.stdout, written.stderr) == (0, "", "")
    file, tokens = tmp_path / "arm-1.token", tmp_path / "tokens.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry["sha256"] for entry in json.loads(tokens.read_text())] == [digest(file.read_text().strip())]
    again = run(*ask, cwd=tmp_path)
    assert (again.returncode, again.stderr) == (2, "edgeflow: out: arm-1.token exists already\n")
    nowhere = run(*ask[:-1], "nowhere/arm.token", cwd=tmp_path)
    assert nowhere.returncode == 2 and nowhere.stderr.startswith("edgeflow: out: cannot write nowhere/arm.token")
    rejected = run(*ask[:5], "king", "--out", "king.token", cwd=tmp_path)
    assert rejected.returncode == 2 and not (tmp_path / "king.token").exists()
    assert len(json.loads(tokens.read_text())) == 1


PORTS = ("--grpc-port", "0", "--http-port", "0", "--health-port", "0", "--robots-port", "0", "--model", "nowhere")


def test_insecure_is_warned_about_before_anything_else(tmp_path: Path):
    result = run("serve", *PORTS, "--grpc-host", "0.0.0.0", "--insecure", cwd=tmp_path)
    first, second = map(json.loads, result.stderr.splitlines())
    assert (first["event"], first["level"]) == ("warning", "warning")
    assert first["text"] == "grpc.host 0.0.0.0 is reachable from other machines without TLS or tokens"
    assert result.returncode == 2 and second["text"].startswith("model:")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--set", "tls.cert=service.pem", "--set", "tls.key=other.key"), "does not match the certificate"),
        (("--set", "tokens_file=public.json"), "chmod o-rwx"),
    ],
)
def test_a_start_that_cannot_be_safe_is_one_line(tmp_path: Path, options: tuple[str, ...], words: str):
    authority = Authority(tmp_path)
    authority.issue("service")
    authority.issue("other")
    (tmp_path / "public.json").write_text("[]")
    result = run("serve", *PORTS, *options, cwd=tmp_path)
    (told,) = [line["text"] for line in map(json.loads, result.stderr.splitlines()) if line["event"] == "failed"]
    assert (result.returncode, words in told) == (2, True), told
