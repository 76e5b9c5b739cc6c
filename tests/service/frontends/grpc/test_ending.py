"""Texts in trailers: as many bytes as clients take, whatever the characters."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from edgeflow.service.frontends.grpc.server import MOST_BYTES, status_text

PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
MARK = " …"


def encoded(text: str) -> str:
    """As gRPC writes a status' text."""
    return quote(text, safe=PLAIN)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 3 * MOST_BYTES))
def test_a_text_is_cut_where_its_encoding_becomes_too_long(piece: str, repeats: int):
    text = (piece * repeats)[: 2 * MOST_BYTES]
    cut = status_text(text)
    if len(encoded(text)) <= MOST_BYTES:
        assert cut == text
    else:
        assert cut.endswith(MARK) and text.startswith(cut.removesuffix(MARK))
        assert len(encoded(cut.removesuffix(MARK))) <= MOST_BYTES
        assert len(encoded(text[: len(cut) - len(MARK) + 1])) > MOST_BYTES
