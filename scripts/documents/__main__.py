"""The pages of docs/reference that are written from the code: `python -m scripts.documents` writes them anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scripts.documents import commands, http, protocol, sdk, settings

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
NOTE = "<!-- Written by `python -m scripts.documents` from the code; change it there. -->\n"
PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": settings.page,
    "commands.md": commands.page,
    "sdk.md": sdk.page,
    "http.md": http.page,
    "protocol.md": protocol.page,
}


def written(name: str) -> str:
    """The text of a page as the code says it."""
    head, _, rest = PAGES[name]().strip().partition("\n")
    return f"{head}\n\n{NOTE}{rest}\n"


def main() -> None:
    """Write all pages."""
    REFERENCE.mkdir(exist_ok=True)
    for name in PAGES:
        (REFERENCE / name).write_text(written(name))


if __name__ == "__main__":
    main()
