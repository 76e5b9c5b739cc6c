"""Rendering of messages with the checkpoint's own chat template, in Jinja's sandbox and a separate process.

A template is a program of the checkpoint's: what it may take is bounded by that process (template_child.py). Here it is
parsed only; already compiling it would compute its constants.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgeflow.ipc.bounded import LAST_WORDS_S, OUT_OF_MEMORY, BoundedProcess
from edgeflow.text.checkpoint_json import read_json, special_tokens
from edgeflow_client.errors import RETRY_AFTER_MS, CheckpointError, InvalidArgument, Unavailable
from edgeflow_client.files import read_regular

TEMPLATE_FILE = "chat_template.jinja"
MAX_TEMPLATE_CHARACTERS = 1 << 20
RENDER_S = 2  # processor time of one text, and of compiling; those of real models take milliseconds
MEMORY_BYTES = 512 << 20  # beside that of the process itself
MOST_BYTES = 64 << 20  # of a text
START_S, PATIENCE_S = 60.0, 10.0  # on a busy machine a process gets little of its time
RENDERED, REJECTED, FAILED = b"T", b"R", b"F"  # the text; what the template says; why there is none


class ChatTemplate:
    """A chat template; calling it renders messages. source: its text. tokens: values of bos_token, eos_token, …."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise CheckpointError(f"chat_template has more than {MAX_TEMPLATE_CHARACTERS} characters")
        try:
            sandbox().parse(source)
        except (TemplateError, RecursionError, ValueError) as error:
            raise CheckpointError(f"chat_template is not a template: {error}") from error
        limits = {"seconds": RENDER_S, "memory_bytes": MEMORY_BYTES}
        self._first = json.dumps({"source": source, "tokens": dict(tokens), **limits}).encode()
        self._process: BoundedProcess | None = None
        self._one_at_a_time = threading.Lock()
        self.takes_tools = "tools" in source

    @classmethod
    def load(cls, directory: Path) -> ChatTemplate | None:
        """Load chat_template.jinja, chat_template.json or the entry in tokenizer_config.json; None if there is none."""
        tokenizer = read_json(directory / "tokenizer_config.json", required=False)
        source = _text_file(directory / TEMPLATE_FILE)
        if source is None:
            older = read_json(directory / "chat_template.json", required=False)
            source = _default(older.get("chat_template") or tokenizer.get("chat_template"))
        return None if source is None else cls(source, special_tokens(directory))

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        answer: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt of these messages. answer: end with the start of the assistant's turn.

        InvalidArgument if the template does not accept the messages, or takes too long or too much memory."""
        question = {"messages": list(messages), "add_generation_prompt": answer, "tools": tools}
        with self._one_at_a_time:
            self._start()
            try:
                return self._exchange(json.dumps(question).encode(), PATIENCE_S)
            except _Failed as error:
                raise InvalidArgument(f"the model's chat template {error}", field="messages") from None

    def start(self) -> None:
        """Compile the template in its process, which the first call does otherwise; CheckpointError if that fails."""
        with self._one_at_a_time:
            self._start()

    def _start(self) -> None:
        if self._process is not None and self._process.alive:
            return
        self._process = BoundedProcess("edgeflow.text.template_child")
        try:
            self._exchange(self._first, START_S)
        except _Failed as error:
            raise CheckpointError(f"chat_template {error}") from None

    def _exchange(self, message: bytes, limit_s: float) -> str:
        if self._process is None:
            raise ValueError("the process of the template is not started")
        try:
            found = self._process.exchange(message, limit_s, MOST_BYTES)
        except TimeoutError:
            self._process.end()
            raise _Failed(f"takes longer than {limit_s:g} s") from None
        except OSError:
            raise _cause(self._process.end(LAST_WORDS_S)) from None
        text = found[1:].decode(errors="surrogatepass")
        if found[:1] == REJECTED:
            raise InvalidArgument(text, field="messages")
        if found[:1] != RENDERED:
            raise _Failed(text)
        return text


class _Generation(Extension):
    """`{% generation %}` … `{% endgeneration %}` mark, for training, the words of an assistant: a scope without
    text.
    """

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def sandbox() -> ImmutableSandboxedEnvironment:
    """The environment of templates; its loops over `range` have at most 100,000 rounds, each."""
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    sandbox.filters["tojson"] = _json
    sandbox.globals |= {"raise_exception": _reject, "strftime_now": _now}
    return sandbox


def _cause(code: int) -> Exception:
    """The error for a call whose process ended with this exit code."""
    if code == -signal.SIGXCPU:
        return _Failed(f"takes more than {RENDER_S} s of processor time")
    if code in OUT_OF_MEMORY:
        return _Failed(f"takes more than {MEMORY_BYTES >> 20} MiB of memory")
    return Unavailable(
        "the process of the model's chat template was lost: try again", field="messages", retry_after_ms=RETRY_AFTER_MS
    )


class _Failed(Exception):
    """The template gives no text. The message is the reason, without its subject."""


class TemplateRaised(TemplateError):
    """The template called raise_exception."""


def _reject(message: object) -> NoReturn:
    raise TemplateRaised(str(message))


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson` with the options that published templates use; Jinja's own would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _text_file(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return read_regular(path, 4 * MAX_TEMPLATE_CHARACTERS).decode()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not readable text: copy the checkpoint again") from error


def _default(source: Any) -> str | None:
    """The chat template of an entry that is one template, or several by name, of which "default" is meant for chat."""
    if isinstance(source, list):
        source = {str(each.get("name")): each.get("template") for each in source if isinstance(each, Mapping)}
        source = source.get("default")
    if source is not None and not isinstance(source, str):
        raise CheckpointError("chat_template must be text or a list of named texts")
    return source
