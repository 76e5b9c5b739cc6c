"""Fixtures of the front's tests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import uvicorn.server

from edgeflow.service import app


def write_fake_checkpoint(path: Path) -> Path:
    """Enough of a checkpoint for the preflight; no network could be loaded from it."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text('{"model_type": "openvla"}')
    for name in ("preprocessor_config.json", "tokenizer.json"):
        (path / name).write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    return path


@pytest.fixture(autouse=True)
def no_collecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that starts collects garbage: here among all that other tests have imported, 0.4 s each time."""
    monkeypatch.setattr(app, "_freeze", lambda: None)


class Hurried:
    """asyncio with short pauses."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(delay: float) -> None:
        await asyncio.sleep(delay / 10)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A uvicorn server that ends pauses twice for 0.1 s, which a child process that is killed does not."""
    monkeypatch.setattr(uvicorn.server, "asyncio", Hurried())


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_checkpoint(tmp_path_factory.mktemp("checkpoint"))
