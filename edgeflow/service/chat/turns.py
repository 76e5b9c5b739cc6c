"""The parts of a conversation: turns, tools, and the format of the answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from edgeflow.errors import InvalidArgument
from edgeflow.service.http.bodies import parse_json

MAX_PARTS = 64
MAX_CALLS = 64
MAX_ARGUMENTS = 64 << 10  # characters
MAX_ARGUMENT_VALUES = 4096
MAX_TOOLS = 64
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Schema: TypeAlias = dict[str, Any]


class OneUnknownKey(BaseModel):
    """An object of which only the first unknown key is looked at: the library would describe every one of them."""

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_key(cls, values: Any) -> Any:
        """The same values with the first of their unknown keys only."""
        if not isinstance(values, dict):
            return values
        known = {field.alias or name for name, field in cls.model_fields.items()}
        first = next((key for key in values if key not in known), None)
        return {key: value for key, value in values.items() if key in known or key == first}


class Body(OneUnknownKey):
    """Base of every object a client sends: unknown keys, NaN and values of the wrong type are refused.

    Lists of objects fail fast.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ImageUrl(Body):
    """An image as `data:image/jpeg;base64,…` or png; other URLs are not fetched."""

    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class TextPart(Body):
    """Text within a message."""

    type: Literal["text"]
    text: str


class ImagePart(Body):
    """An image within a message."""

    type: Literal["image_url"]
    image_url: ImageUrl


class Called(Body):
    """A called function. arguments: a JSON object as text."""

    name: Name
    arguments: str

    @field_validator("arguments")
    @classmethod
    def _object(cls, text: str) -> str:
        if len(text) > MAX_ARGUMENTS:
            raise ValueError(f"exceeds {MAX_ARGUMENTS} characters")
        try:
            values = parse_json(text.encode("utf-8", "surrogatepass"), MAX_ARGUMENT_VALUES)
        except InvalidArgument as error:
            raise ValueError(str(error).removeprefix("body: ")) from None
        if not isinstance(values, dict):
            raise ValueError("must be a JSON object")
        return text


class ToolCall(Body):
    """A tool call in an earlier answer."""

    id: str = Field(max_length=64)
    type: Literal["function"] = "function"
    function: Called


Part: TypeAlias = Annotated[TextPart | ImagePart, Field(discriminator="type")]
Content: TypeAlias = str | Annotated[list[Part], Field(fail_fast=True, max_length=MAX_PARTS)]


class _Turn(Body):
    name: str | None = Field(None, max_length=64)


class AskingTurn(_Turn):
    """A system, developer or user message."""

    role: Literal["system", "developer", "user"]
    content: Content


class AnswerTurn(_Turn):
    """An earlier answer of the model."""

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True, min_length=1, max_length=MAX_CALLS)] | None = None
    refusal: str | None = None


class ToolTurn(_Turn):
    """The result of a tool call."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str = Field(max_length=64)


Message: TypeAlias = Annotated[AskingTurn | AnswerTurn | ToolTurn, Field(discriminator="role")]


class Function(Body):
    """A function offered as a tool. parameters: the JSON schema of its arguments."""

    name: Name
    description: str = ""
    parameters: Schema = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None


class Tool(Body):
    """A tool that the answer may call."""

    type: Literal["function"]
    function: Function


class _Named(Body):
    name: Name


class NamedTool(Body):
    """The tool that the answer must call."""

    type: Literal["function"]
    function: _Named


class PlainFormat(Body):
    """Plain text, or any JSON object."""

    type: Literal["text", "json_object"]


class SchemaOf(Body):
    """A named JSON schema."""

    name: Name
    description: str = ""
    schema_: Schema = Field(alias="schema")
    strict: bool | None = None


class SchemaFormat(Body):
    """JSON that conforms to a schema."""

    type: Literal["json_schema"]
    json_schema: SchemaOf


ResponseFormat: TypeAlias = Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")]
