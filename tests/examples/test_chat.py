"""The question of examples/chat.py is one that the embedded chat model can answer."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import openai
import pytest
import torch

from edgeflow.lab.demo.chat.evaluate import Answerer
from edgeflow.model_paths import EMBEDDED_CHAT_MODEL
from edgeflow.models.chat import load_chat_model

EXAMPLE = Path(__file__).parents[2] / "examples/chat.py"


def test_the_model_that_ships_answers_it(monkeypatch: pytest.MonkeyPatch):
    service: Any = Mock()
    service.chat.completions.create.return_value = ()
    monkeypatch.setattr(openai, "OpenAI", lambda **_: service)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    answer = Answerer(load_chat_model(EMBEDDED_CHAT_MODEL, torch.float32, torch.device("cpu")))
    sent = service.chat.completions.create.call_args.kwargs["messages"]
    assert answer(sent) == "The blue ball is at x-14 y+08 z12."
