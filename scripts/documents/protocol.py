"""docs/reference/protocol.md: the gRPC protocol, from the comments of its definition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scripts.documents.tables import inline, table

PROTO = Path(__file__).parents[2] / "proto" / "edgeflow" / "v1" / "control.proto"
HEAD = """# gRPC protocol

The stream between a robot and the service, for a client in another language than Python; in Python, use the
[SDK](sdk.md). [control.proto](../../proto/edgeflow/v1/control.proto) defines it, as package `edgeflow.v1`; its port is
`grpc.port`, 50051 by default. On loopback the service answers gRPC reflection:

```bash
grpcurl -plaintext 127.0.0.1:50051 describe edgeflow.v1.Control
```

A session is one stream: `Open` first, then frames. The service answers `Opened`, one `FrameStatus` per frame, and an
`Action` for each frame that is acted on. A client executes an action for `valid_for_ms` at most, never beyond
`max_age_ms`, and holds when the service goes silent.

"""
OPENING = re.compile(r"(service|message|enum|oneof) (\w+) \{(\})?")
ENTRY = re.compile(r"(?:((?:repeated |optional )?[\w.]+) )?(\w+) = (\d+);")
CALL = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);")
KINDS = {"service": "Service", "message": "Message", "enum": "Enum"}


@dataclass(slots=True)
class Block:
    """A service, a message or an enum."""

    kind: str
    name: str
    about: str
    rows: list[list[str]] = field(default_factory=list)
    """Type or number, name and meaning of each entry."""


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a definition; the entries of a oneof stand in its message."""
    block: Block | None = None
    said: list[str] = []
    column = 0
    for line in text.splitlines():
        code, mark, comment = line.partition("//")
        stripped = code.strip()
        if mark and not stripped:
            if block and block.rows and line.index("//") > column > 0:
                block.rows[-1][2] += f" {comment.strip()}"  # the comment of the line above goes on
            else:
                said.append(comment.strip())
            continue
        if opening := OPENING.match(stripped):
            if opening[1] != "oneof":
                block = Block(opening[1], opening[2], " ".join(said))
                if opening[3]:
                    yield block
            said, column = [], 0
        elif stripped == "}" and block and not code.startswith(" "):
            yield block
            block, said = None, []
        elif block and (row := _row(stripped)):
            row[2] = " ".join([*said, comment.strip()]).strip()
            block.rows.append(row)
            said, column = [], code.index(stripped[0])
        elif not stripped:
            said = []


def page() -> str:
    """The page."""
    text = HEAD
    for each in blocks(PROTO.read_text()):
        text += f"## {KINDS[each.kind]} `{each.name}`\n\n" + (f"{inline(each.about)}\n\n" if each.about else "")
        heads = {"service": ("Call", "Takes and returns"), "message": ("Field", "Type"), "enum": ("Value", "Number")}
        rows = [(f"`{name}`", f"`{kind}`", inline(meaning)) for kind, name, meaning in each.rows]
        text += table((*heads[each.kind], "Meaning"), rows) + "\n" if rows else "It has no fields.\n\n"
    return text


def _row(code: str) -> list[str] | None:
    if call := CALL.match(code):
        taken, returned = (f"{call[at] or ''}{call[at + 1]}" for at in (2, 4))
        return [f"{taken} → {returned}", call[1], ""]
    if entry := ENTRY.match(code):
        return [entry[1] or entry[3], entry[2], ""]
    return None
