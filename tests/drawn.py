"""The figures that a test draws, and what each of them must have."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def drawn(monkeypatch) -> dict[str, Figure]:
    """Figures by the name of their file. Each has a title, and no part of it is cut at an edge."""
    figures: dict[str, Figure] = {}
    write = Figure.savefig

    def savefig(figure: Figure, path: Path, **options: object) -> None:
        write(figure, path, **options)
        assert figure.get_suptitle(), f"{path.name} has no title"
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, f"{path.name} is cut: {box}"
        figures[path.name] = figure

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


def said(figure: Figure) -> str:
    """All that a figure says, its legends included."""
    texts = (text.get_text() for text in figure.findobj(lambda each: hasattr(each, "get_text")) if text.get_visible())
    return "\n".join(texts)
