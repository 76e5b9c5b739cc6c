"""The lines that `edgeflow export` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeflow.lab.export.run import how_served


@pytest.mark.parametrize(
    ("family", "text"), [("qwen2", "chat.model of a"), ("smolvla", "`edgeflow serve --model out`")]
)
def test_the_way_to_serve_is_that_of_the_kind_of_model(family: str, text: str):
    """`--model` takes no chat model."""
    assert text in how_served(family, Path("out"))
