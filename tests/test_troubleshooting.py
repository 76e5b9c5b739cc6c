"""The messages on docs/operate/troubleshooting.md are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = "\n".join(path.read_text() for top in ("edgeflow", "client") for path in (ROOT / top).rglob("*.py"))
MESSAGE = re.compile(r"^\| `([^`]+ [^`]+)`", re.MULTILINE)
VALUES = {"config.json of x has type 'diffusion'; served: ..."}  # too many to know the words between them
PLAIN = re.compile(r"(?:\b[a-z]+,? ?){2,}")  # words in a row, no values between them


def known(message: str) -> bool:
    """True if the code has three words in a row of the message's longest plain part, or all where there are two."""
    words = max(PLAIN.findall(message), key=len, default="").split()
    size = min(3, len(words))
    return any(" ".join(words[start : start + size]) in SOURCE for start in range(len(words) - size + 1))


def test_the_messages_on_the_page_stand_in_the_code():
    messages = set(MESSAGE.findall((ROOT / "docs/operate/troubleshooting.md").read_text()))
    assert len(messages) > 30
    assert {each for each in messages if not known(each)} == VALUES


def test_another_message_does_not():
    assert not known("model: x was eaten by a grue")
