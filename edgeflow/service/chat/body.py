"""Request bodies of the OpenAI-compatible routes, with their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, Discriminator, FailFast, Field, Tag, ValidationError, model_validator

from edgeflow.config.chat import ChatMessage
from edgeflow.service.chat.messages import (
    KIND,
    LIST,
    MAX_TOOLS,
    TAG,
    TEXT,
    ClientObject,
    Message,
    NamedTool,
    OneUnknownKey,
    OnlyValues,
    ResponseFormat,
    Tool,
    text_or_list,
)
from edgeflow.service.chat.schemas import NO_SCHEMA, AnswerSchema, call_schema, format_schema
from edgeflow.service.http.bodies import JSON_TYPE, media_type, parse_json
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason

MAX_VALUES = 1 << 14  # 64 messages of 64 parts have 12,800
MAX_FIELD = 100  # characters of a client's name that an error repeats
MAX_MESSAGES = 64
MAX_STOPS = 4
MAX_PROMPTS = 16
MAX_STOP = 64
Probability = Annotated[float, Field(ge=0, le=1)]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP)]
Stop = Annotated[
    Annotated[StopText, Tag(TEXT)]
    | Annotated[Annotated[list[StopText], Field(fail_fast=True, max_length=MAX_STOPS)], Tag(LIST)],
    text_or_list("texts"),
]
MetadataText = Annotated[str, Field(max_length=512)]
PromptText = Annotated[str, Field(min_length=1)]
Ids = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(fail_fast=True, min_length=1)]
IDS, ID_LISTS = f"{TAG}ids", f"{TAG}lists of ids"
Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]


class StreamOptions(ClientObject):
    """Options of a streamed answer."""

    include_usage: bool = False
    """Send the token counts in a last chunk."""
    include_obfuscation: Annotated[Any, OnlyValues(False)] = None


class _Sampling(ClientObject):
    """Fields of both routes. Omitted sampling fields, and null, default to the checkpoint's generation_config."""

    model: str = ""
    """Name of the chat model; empty = the one that is served."""
    max_tokens: int | None = Field(None, ge=1)
    """Most tokens of an answer; unset = `chat.max_tokens`."""
    temperature: float | None = Field(None, ge=0, le=2)
    """0 takes the likeliest token."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Share of probability that is sampled from."""
    top_k: int | None = Field(None, ge=-1, le=1 << 20)
    """0 and -1: off."""
    min_p: Probability | None = None
    """Lowest probability that is sampled, relative to the likeliest token's."""
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    """Divisor for tokens that stand in the sequence; 1 = off."""
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    """Subtracted once for tokens that the answer has."""
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    """Subtracted for each time that the answer has a token."""
    seed: int | None = Field(None, ge=0, lt=1 << 63)
    """Seed of the sampling, for answers that can be repeated."""
    n: int = Field(1, ge=1, le=4)
    """Answers to each prompt."""
    stop: Stop | None = None
    """Texts that end the answer, which does not contain them."""
    stream: bool = False
    """Send the answer as server-sent events, piece by piece."""
    stream_options: StreamOptions | None = None
    """With stream: `include_usage` sends the token counts in a last chunk."""
    user: str | None = Field(None, max_length=256)
    """Ignored."""
    slot: str | None = Field(None, max_length=64)
    """The fixed prefix to continue; `NAME:SLOT` as the model says the same."""
    logit_bias: Annotated[Any, OnlyValues({})] = None

    @property
    def length(self) -> tuple[str, int | None]:
        """The field that limits the tokens of an answer, and its limit; None if the request sets none."""
        return "max_tokens", self.max_tokens

    @property
    def answer_schema(self) -> AnswerSchema:
        """The JSON schema that the answer must follow."""
        return NO_SCHEMA

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end an answer."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatBody(_Sampling):
    """The body of POST /v1/chat/completions."""

    messages: Messages
    """The conversation."""
    max_completion_tokens: int | None = Field(None, ge=1)
    """Another name of max_tokens, which it overrides."""
    logprobs: bool = False
    """Return the log probability of each token."""
    top_logprobs: int | None = Field(None, ge=0, le=5)
    """With logprobs: the most likely alternatives per token."""
    response_format: ResponseFormat | None = None
    """JSON, or a JSON schema, that the answer must follow."""
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    """Functions that the answer may call."""
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    """Which of the tools the answer must call, if any."""
    parallel_tool_calls: bool = True
    """False: the answer ends with its first call."""
    metadata: Annotated[dict[str, MetadataText], Field(max_length=16)] | None = None
    """Ignored."""
    prompt_cache_key: str | None = Field(None, max_length=256)
    """Ignored."""
    prompt_cache_retention: str | None = Field(None, max_length=64)
    """Ignored."""
    safety_identifier: str | None = Field(None, max_length=256)
    """Ignored."""
    function_call: Annotated[Any, OnlyValues("none", "auto")] = None
    functions: Annotated[Any, OnlyValues([])] = None
    modalities: Annotated[Any, OnlyValues(["text"])] = None
    reasoning_effort: Annotated[Any, OnlyValues("none")] = None
    service_tier: Annotated[Any, OnlyValues("auto", "default")] = None
    store: Annotated[Any, OnlyValues(False)] = None
    verbosity: Annotated[Any, OnlyValues("medium")] = None

    @property
    def offered_tools(self) -> list[Tool]:
        """Tools that the answer may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def forced_tools(self) -> dict[int, Tool]:
        """The tools of which the answer must call one, by index in the request; empty if no call is required."""
        offered = dict(enumerate(self.offered_tools))
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            return {index: tool for index, tool in offered.items() if tool.function.name == name}
        return offered if self.tool_choice == "required" else {}

    @property
    def answer_schema(self) -> AnswerSchema:
        return call_schema(self.forced_tools) if self.forced_tools else format_schema(self.response_format)

    @model_validator(mode="after")
    def _tools_go_together(self) -> ChatBody:
        if self.tool_choice not in (None, "auto", "none") and not self.forced_tools:
            raise _wrong("must name one of tools", "tool_choice")
        if self.offered_tools and self.response_format is not None and self.response_format.type != "text":
            raise _wrong("cannot be combined with tools", "response_format")
        return self

    @property
    def length(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return super().length

    @property
    def logprob_count(self) -> int:
        """The number of alternatives per token; -1 = no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else -1


def _kind_of_prompt(value: Any) -> str | None:
    if isinstance(value, str):
        return TEXT
    if not isinstance(value, list) or not value:
        return None
    return LIST if isinstance(value[0], str) else ID_LISTS if isinstance(value[0], list) else IDS


Prompt = Annotated[
    Annotated[PromptText, Tag(TEXT)]
    | Annotated[Annotated[list[PromptText], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)], Tag(LIST)]
    | Annotated[Ids, Tag(IDS)]
    | Annotated[Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)], Tag(ID_LISTS)],
    Discriminator(
        _kind_of_prompt,
        custom_error_type=KIND,
        custom_error_message="must be a text, a list of texts, a list of token ids, or a list of such lists, not empty",
    ),
]


class CompletionBody(_Sampling):
    """The body of POST /v1/completions."""

    prompt: Prompt
    """A text or its token ids, or a list of either; the choices of the first prompt come first."""
    logprobs: int | None = Field(None, ge=0, le=5)
    """Alternatives per token whose log probabilities are returned."""
    best_of: Annotated[Any, OnlyValues(1)] = None
    echo: Annotated[Any, OnlyValues(False)] = None
    suffix: Annotated[Any, OnlyValues("")] = None

    @property
    def prompts(self) -> dict[str, str | list[int]]:
        """Texts and token ids to continue, by path in the request."""
        if _kind_of_prompt(self.prompt) in (TEXT, IDS):
            return {"prompt": cast("str | list[int]", self.prompt)}
        several = cast("Sequence[str | list[int]]", self.prompt)
        return {f"prompt.{index}": each for index, each in enumerate(several)}

    @property
    def logprob_count(self) -> int:
        """The number of alternatives per token; -1 = no log probabilities."""
        return -1 if self.logprobs is None else self.logprobs


class TokenizeBody(ClientObject):
    """The body of POST /tokenize: plain text, or messages for the chat template."""

    model: str = ""
    """Name of the chat model; empty = the one that is served."""
    prompt: str | None = None
    """Plain text."""
    messages: Messages | None = None
    """A conversation, for the chat template."""

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise _wrong("give either prompt or messages", "prompt")
        return self


class PrefixMessage(ChatMessage, OneUnknownKey):
    """A message of a fixed prefix, as a client sends it."""


class PrefixBody(ClientObject):
    """A fixed prefix: messages (chat completions), or text (completions)."""

    messages: Annotated[list[PrefixMessage], FailFast()] = Field(default_factory=list, max_length=MAX_MESSAGES)
    """A conversation, for chat completions."""
    text: str = Field("", max_length=1 << 20)
    """Plain text, for completions."""

    @model_validator(mode="after")
    def _one_of_both(self) -> PrefixBody:
        if bool(self.messages) == bool(self.text):
            raise _wrong("give either messages or text", "messages")
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
        raise _rejection(error, values) from None


def _wrong(why: str, field: str) -> InvalidArgument:
    return InvalidArgument(why, field=field, reason=Reason.BODY_FIELD)


def _rejection(error: ValidationError, values: Any) -> InvalidArgument:
    """The most deeply nested error. For a field of several permitted types, the library reports one error per type."""
    details: list[Any] = list(error.errors(include_input=False, include_url=False))
    found = [_place(detail["loc"], values) for detail in details]
    index = max(range(len(found)), key=lambda each: (len(found[each][0]), -each))
    (place, value), detail = found[index], details[index]
    message = detail["msg"].removeprefix("Value error, ")
    kind, _, key = detail["type"].partition(".")
    if kind == KIND and key:
        if isinstance(value, dict):
            place.append(key)
        else:
            message = "must be an object"
    return _wrong(message, ".".join(place)[:MAX_FIELD].encode("ascii", "replace").decode())


def _place(loc: Sequence[str | int], value: Any) -> tuple[list[str], Any]:
    """The path through the client's own value, without the type names that the library inserts between its steps.

    Also the value at its end; a key that is missing, or unknown, may be the last step.
    """
    steps = []
    for at, step in enumerate(loc):
        if isinstance(step, str) and step.startswith(TAG):
            continue
        there = step in value if isinstance(value, dict) else isinstance(value, list) and isinstance(step, int)
        if there:
            value = value[step]
        if there or (isinstance(value, dict) and at == len(loc) - 1):
            steps.append(str(step))
    return steps, value
