"""The targets of chat beside their figures: met, missed, or not measured where the peers are not given."""

from __future__ import annotations

import pytest

from benchmarks.chat import figures
from benchmarks.chat.figures import Bar
from benchmarks.chat.systems import Timed
from benchmarks.chat_int4.__main__ import bars

OURS = {"4": 1.0, "8": 1.5, "16": 1.0}


def timed(token_s: float) -> Timed:
    """A first token after a second, then one every `token_s`."""
    return Timed(at=[1.0, 1.0 + token_s, 1.0 + 2 * token_s], tokens=[0, 0, 0])


def round_with(**peers: float) -> dict[str, Timed]:
    return {name: timed(token_s) for name, token_s in (OURS | peers).items()}


def test_without_peers_their_bar_is_not_measured():
    found = bars([round_with()], "4", "8", "16", [])
    assert [bar.met for bar in found] == [True, True, None, None]
    assert found[2].value is None and found[2].row[1:] == ("not measured", ">= 1", "not measured")
    assert [bar.met for bar in figures.peer_ratios([], [])] == [None, None]


@pytest.mark.parametrize(("peer_s", "verdict"), [(2.0, "met"), (0.875, "MISSED")])
def test_with_peers_the_faster_one_is_the_bar(peer_s: float, verdict: str):
    found = bars([round_with(a=peer_s, b=2.5)], "4", "8", "16", ["a", "b"])
    assert (found[2].value, found[2].row[3]) == (peer_s, verdict)
    assert (found[3].value, found[3].met, found[3].row[2:]) == (2.5, None, ("", ""))
    assert [bar.name for bar in found] == [bar.name for bar in bars([round_with()], "4", "8", "16", [])]


def test_the_bar_of_decoding_is_of_like_precision():
    """Eight bits compared with bfloat16 are reported without a bar."""
    times = {"edgeflow bfloat16": 1.0, "edgeflow bfloat16, int8 weights": 0.5, "edgeflow float32": 2.0}
    theirs = {"transformers bfloat16": 2.1, "transformers float32": 4.0}
    halves, best, first = figures.main_bars([{name: timed(each) for name, each in (times | theirs).items()}])
    assert (halves.value, halves.row[3]) == (2.1, "MISSED")
    assert (best.value, best.met) == (4.2, None)
    assert first.value == 1.0


def test_a_figure_without_a_limit_has_no_verdict():
    assert Bar("x", 2.0).row == ("x", "2", "", "") and Bar("x", None).row == ("x", "not measured", "", "")
    assert Bar("x", 2.0).met is None
