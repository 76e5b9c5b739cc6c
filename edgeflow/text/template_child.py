"""The process in which a chat template is compiled and rendered (chat_template.py), within its limits."""

from __future__ import annotations

import json
from collections.abc import Callable

from jinja2 import Template, TemplateError

from edgeflow.ipc.bounded import limit_memory, limit_time, serve
from edgeflow.text.chat_template import FAILED, MOST_BYTES, REJECTED, RENDERED, TemplateRaised, sandbox

MAX_REASON = 200  # characters of the template's own words


def main() -> None:
    """Render messages until standard input ends. The first message is the template."""
    serve(_start)


def _start(first: bytes) -> tuple[bytes, Callable[[bytes], bytes] | None]:
    values = json.loads(first)
    limit_memory(values["memory_bytes"])
    limit_time(values["seconds"])
    try:
        template = sandbox().from_string(values["source"])
    except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
        return FAILED + f"cannot be compiled: {error}"[:MAX_REASON].encode(errors="surrogatepass"), None

    def answer(message: bytes) -> bytes:
        limit_time(values["seconds"])
        return _answer(template, {**values["tokens"], **json.loads(message)})

    return RENDERED, answer


def _answer(template: Template, values: dict[str, object]) -> bytes:
    try:
        text = template.render(values).encode(errors="surrogatepass")
    except TemplateRaised as error:
        return REJECTED + str(error)[:MAX_REASON].encode(errors="surrogatepass")
    except MemoryError:
        raise  # its exit code tells
    except Exception:  # a template is a program: it fails in any way on messages it was not made for
        return FAILED + b"does not accept these messages"
    if len(text) >= MOST_BYTES:
        return FAILED + f"writes more than {MOST_BYTES >> 20} MiB".encode()
    return RENDERED + text
