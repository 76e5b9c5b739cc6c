"""The process in which a chat template is compiled and rendered (chat_template.py), within its limits."""

from __future__ import annotations

import json
import sys

from jinja2 import Template, TemplateError

from edgeflow.ipc.bounded import end_without_memory, limit_memory, limit_time, receive, send, step_back
from edgeflow.text.chat_template import FAILED, MOST_BYTES, REFUSED, RENDERED, Refused, sandbox

MAX_REASON = 200  # characters of the template's own words


def main() -> None:
    """Render messages until standard input ends. The first message is the template."""
    end_without_memory(_serve)


def _serve() -> None:
    step_back()
    stream, out = sys.stdin.buffer, sys.stdout.buffer
    first = receive(stream)
    if first is None:
        return
    values = json.loads(first)
    limit_memory(values["memory_bytes"])
    limit_time(values["seconds"])
    try:
        template = sandbox().from_string(values["source"])
    except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
        send(out, FAILED + f"cannot be compiled: {error}"[:MAX_REASON].encode(errors="surrogatepass"))
        return
    send(out, RENDERED)
    while (message := receive(stream)) is not None:
        limit_time(values["seconds"])
        send(out, _answer(template, {**values["tokens"], **json.loads(message)}))


def _answer(template: Template, values: dict[str, object]) -> bytes:
    try:
        text = template.render(values).encode(errors="surrogatepass")
    except Refused as error:
        return REFUSED + str(error)[:MAX_REASON].encode(errors="surrogatepass")
    except MemoryError:
        raise  # its exit code tells
    except Exception:  # a template is a program: it fails in any way on messages it was not made for
        return FAILED + b"does not accept these messages"
    if len(text) >= MOST_BYTES:
        return FAILED + f"writes more than {MOST_BYTES >> 20} MiB".encode()
    return RENDERED + text
