"""Rendering of messages with the checkpoint's own chat template, in Jinja's sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgeflow.errors import CheckpointError, InvalidArgument
from edgeflow.text.checkpoint_json import read_json
from edgeflow.text.special_tokens import special_tokens

TEMPLATE_FILE = "chat_template.jinja"
MAX_TEMPLATE_CHARACTERS = 1 << 20


class ChatTemplate:
    """A chat template; calling it renders messages. source: its text. tokens: values of bos_token, eos_token, …."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise CheckpointError(f"chat_template has more than {MAX_TEMPLATE_CHARACTERS} characters")
        sandbox = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        sandbox.filters["tojson"] = _json
        sandbox.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        try:
            self._template = sandbox.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise CheckpointError(f"chat_template is not a template: {error}") from error
        self._tokens = dict(tokens)
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

        InvalidArgument if the template does not accept the messages."""
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=answer, tools=tools, **self._tokens
            )
        except _Refused as error:
            raise InvalidArgument(str(error)[:200], field="messages") from error
        except Exception as error:  # a template is a program: it fails in any way on messages it was not made for
            raise InvalidArgument(
                "the model's chat template does not accept these messages", field="messages"
            ) from error


class _Generation(Extension):
    """`{% generation %}` … `{% endgeneration %}` mark for training what an assistant said: a scope, and no text."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Refused(TemplateError):
    """The template called raise_exception."""


def _refuse(message: object) -> NoReturn:
    raise _Refused(str(message))


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
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_TEMPLATE_CHARACTERS + 1)
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
