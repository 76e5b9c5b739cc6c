"""Every reason is a member of one enum, used in the package and explained in docs/reference/reasons.md."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import msgpack
import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb

ROOT = Path(__file__).parents[2]
PACKAGE, CLIENT = ROOT / "edgeflow", ROOT / "client" / "edgeflow_client"
SOURCES = sorted(
    path
    for top in (PACKAGE, CLIENT)
    for path in top.rglob("*.py")
    if path.parent.name != "rpc" and path.name != "reasons.py"
)
VALUES = {reason.value for reason in Reason}


def spelled(tree: ast.AST) -> list[tuple[int, str]]:
    """Line and text of every reason written as a string: a known one, or any given as `reason=`."""
    known = [(n.lineno, n.value) for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value in VALUES]
    given = [
        (node.value.lineno, str(node.value.value))
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "reason" and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str) and node.value.value.isupper()
    ]
    return sorted({*known, *given})


def test_no_reason_is_a_bare_string():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in SOURCES
        for line, text in spelled(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize("text", ['f(reason="NEW_ONE")', 'hold("WORKER_LOST")', 'x = "FAULT"'])
def test_a_bare_string_is_found(text: str):
    assert spelled(ast.parse(text))


def test_names_are_values_and_every_one_is_used():
    text = "\n".join(path.read_text() for path in SOURCES)
    assert {reason.name for reason in Reason} == VALUES
    assert VALUES - set(re.findall(r"\bReason\.(\w+)", text)) == set()


def test_the_documentation_explains_all_and_no_other():
    rows = re.findall(r"^\| `(\w+)` \| \S", (ROOT / "docs/reference/reasons.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(VALUES)


def test_a_reason_travels_as_its_plain_value():
    reason = Reason.WORKER_LOST
    assert (str(reason), f"{reason}", f"{reason:>12}", reason.label) == (
        "WORKER_LOST",
        "WORKER_LOST",
        " WORKER_LOST",
        "worker_lost",
    )
    assert reason == "WORKER_LOST" and reason in {"WORKER_LOST"} and "WORKER_LOST" in {reason: 1}
    assert msgpack.unpackb(msgpack.packb([reason])) == ["WORKER_LOST"]
    assert json.loads(json.dumps({reason: [reason]})) == {"WORKER_LOST": ["WORKER_LOST"]}
    assert pb.Action.FromString(pb.Action(reason=reason).SerializeToString()).reason == "WORKER_LOST"
    assert InvalidArgument("no", reason=reason).reason == "WORKER_LOST"


def test_a_reason_labels_metrics_with_its_plain_value():
    registry = CollectorRegistry()
    Counter("frames", "Frames", ["reason"], registry=registry).labels(Reason.FAULT).inc()
    assert b'frames_total{reason="FAULT"} 1.0' in generate_latest(registry)
