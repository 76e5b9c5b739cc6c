"""Request bodies of the OpenAI-compatible routes, with their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, FailFast, Field, ValidationError, model_validator

from edgeflow.config_sections import ChatMessage
from edgeflow.errors import InvalidArgument
from edgeflow.reasons import Reason
from edgeflow.service.chat.schemas import call_schema, format_schema
from edgeflow.service.chat.turns import MAX_TOOLS, Body, Message, NamedTool, OneUnknownKey, ResponseFormat, Tool
from edgeflow.service.http.bodies import JSON_TYPE, media_type, parse_json

MAX_VALUES = 1 << 14  # 64 messages of 64 parts have 12,800
MAX_FIELD = 100  # characters of a name that an answer repeats
MAX_MESSAGES = 64
MAX_STOPS = 4
PREFIXES = "/admin/v1/prefixes"
MAX_STOP = 64
Probability = Annotated[float, Field(ge=0, le=1)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP)]
Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]


class StreamOptions(Body):
    """Options of a streamed answer. include_usage: send the token counts in a last chunk."""

    include_usage: bool = False


class _Sampling(Body):
    """Fields of both routes. Omitted sampling fields default to the checkpoint's generation_config."""

    model: str = ""
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=1 << 20)
    min_p: Probability | None = None
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(None, ge=0, lt=1 << 63)
    n: int = Field(1, ge=1, le=4)
    stop: Stop | Annotated[list[Stop], Field(fail_fast=True, max_length=MAX_STOPS)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, max_length=256)
    slot: str | None = Field(None, max_length=64)

    @property
    def length(self) -> int | None:
        """The requested limit of answer tokens; None if the request sets none."""
        return self.max_tokens

    @property
    def schema_wanted(self) -> str:
        """The JSON schema that the answer must follow; empty for text."""
        return ""

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end an answer."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatBody(_Sampling):
    """The body of POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=5)
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True, min_length=1, max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None

    @property
    def offered(self) -> list[Tool]:
        """Tools that the answer may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def forced(self) -> list[Tool]:
        """Tools of which the answer must call one; empty if no call is required."""
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            return [tool for tool in self.offered if tool.function.name == name]
        return self.offered if self.tool_choice == "required" else []

    @property
    def schema_wanted(self) -> str:
        return call_schema(self.forced) or format_schema(self.response_format)

    @model_validator(mode="after")
    def _tools_go_together(self) -> ChatBody:
        if self.tool_choice not in (None, "auto", "none") and not self.forced:
            raise ValueError("tool_choice: must name one of tools")
        if self.offered and self.response_format is not None and self.response_format.type != "text":
            raise ValueError("response_format: cannot be combined with tools")
        return self

    @property
    def length(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def logprobs_wanted(self) -> int:
        """The number of alternatives per token; -1 = no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else -1


class CompletionBody(_Sampling):
    """The body of POST /v1/completions."""

    prompt: str = Field(min_length=1)
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: Literal[False] = False

    @property
    def logprobs_wanted(self) -> int:
        """The number of alternatives per token; -1 = no log probabilities."""
        return -1 if self.logprobs is None else self.logprobs


class TokenizeBody(Body):
    """The body of POST /tokenize: plain text, or messages for the chat template."""

    model: str = ""
    prompt: str | None = None
    messages: Messages | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class PrefixMessage(ChatMessage, OneUnknownKey):
    """A message of a fixed prefix, as a client sends it."""


class PrefixBody(Body):
    """A fixed prefix: messages (chat completions), or text (completions)."""

    messages: Annotated[list[PrefixMessage], FailFast()] = Field(default_factory=list, max_length=MAX_MESSAGES)
    text: str = Field("", max_length=1 << 20)

    @model_validator(mode="after")
    def _one_of_both(self) -> PrefixBody:
        if bool(self.messages) == bool(self.text):
            raise ValueError("give either messages or text")
        return self


Kind = TypeVar("Kind", bound=BaseModel)


def parse(kind: type[Kind], content_type: str, data: bytes) -> Kind:
    """The checked body; RequestErrors name the field."""
    media_type(content_type, (JSON_TYPE,))
    values = parse_json(data, MAX_VALUES)
    if not isinstance(values, dict):
        raise InvalidArgument("must be an object", field="body", reason=Reason.BODY_SHAPE)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _refusal(error, values) from None


def _refusal(error: ValidationError, values: Any) -> InvalidArgument:
    """The most deeply nested error: where a field has several permitted types, the library reports one for each."""
    details: list[Any] = list(error.errors(include_input=False, include_url=False))
    places = [_place(detail["loc"], values) for detail in details]
    index = max(range(len(places)), key=lambda each: (len(places[each]), -each))
    place, detail = places[index], details[index]
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"].startswith("union_tag"):  # the library's words repeat what the client sent
        place.append(detail["ctx"]["discriminator"].strip("'"))
        message = f"must be one of {detail['ctx'].get('expected_tags', 'the known kinds')}"
    field = ".".join(place)[:MAX_FIELD].encode("ascii", "replace").decode()
    return InvalidArgument(message, field=field, reason=Reason.BODY_FIELD)


def _place(loc: Sequence[str | int], value: Any) -> list[str]:
    """The path through the sender's own value, without the type names that the library puts between its steps."""
    steps = []
    for at, step in enumerate(loc):
        there = step in value if isinstance(value, dict) else isinstance(value, list) and isinstance(step, int)
        if there:
            value = value[step]
        if there or (isinstance(value, dict) and at == len(loc) - 1):
            steps.append(str(step))
    return steps
