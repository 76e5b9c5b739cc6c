"""Checks of texts, names and unknown fields, in messages of any kind."""

from __future__ import annotations

import unicodedata
from functools import cache

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from edgeflow.config.sections import LimitsConfig
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason

MAX_NAME = 64
MAX_PARTS = 64  # messages in a repeated field
_REFUSED_CATEGORIES = {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"}


def check_text(text: str, field: str, limits: LimitsConfig) -> str:
    """Validate an instruction: not empty, bounded, printable."""
    limit = limits.text_bytes
    if len(text) > limit or len(text.encode("utf-8", "surrogatepass")) > limit:
        raise text_too_long(field, limits)
    if not text.strip():
        raise InvalidArgument("is empty", field=field, reason=Reason.TEXT_EMPTY)
    if any(unicodedata.category(character) in _REFUSED_CATEGORIES for character in text):
        raise InvalidArgument(
            "contains control or unassigned characters", field=field, reason=Reason.TEXT_BAD_CHARACTER
        )
    return text


def check_name(name: str, field: str) -> str:
    """Validate a name: not empty, bounded, printable."""
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidArgument(f"must have 1 to {MAX_NAME} printable characters", field=field, reason=Reason.BAD_NAME)
    return name


def text_too_long(field: str, limits: LimitsConfig) -> InvalidArgument:
    """The refusal of a text that exceeds the limit."""
    return InvalidArgument(
        f"exceeds the limit of {limits.text_bytes} bytes of UTF-8", field=field, reason=Reason.TEXT_TOO_LONG
    )


def refuse_unknown_fields(message: Message, field: str) -> None:
    """Refuse unknown fields, also in nested messages: a field ignored here may matter to the robot.

    Unknown fields are discarded and sizes compared, because listing a message full of them would take a second.
    """
    for name in _message_fields(message.DESCRIPTOR):
        path, value = f"{field}.{name}", getattr(message, name)
        if isinstance(value, Message):
            value = [value] if message.HasField(name) else []
        if len(value) > MAX_PARTS:
            raise InvalidArgument(
                f"has {len(value)} entries; the limit is {MAX_PARTS}", field=path, reason=Reason.PARTS
            )
        for part in value:
            refuse_unknown_fields(part, path)
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise InvalidArgument("contains fields unknown to this version", field=field, reason=Reason.UNKNOWN_FIELD)


@cache
def _message_fields(kind: Descriptor) -> tuple[str, ...]:
    """The names of the fields that hold messages; reading the others would copy pixels and texts."""
    return tuple(field.name for field in kind.fields if field.message_type is not None)
