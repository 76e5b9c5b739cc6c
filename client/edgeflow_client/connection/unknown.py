"""Fields of messages from a newer edgeflow: which there are, and which may be ignored.

Service and SDK may differ in their version. A message may mean something else with a field that its reader does not
know, and only the author of a field can say. So its number says it:

- A service rejects an unknown field below FIRST_IGNORABLE, and ignores one from there on.
- An SDK ignores every unknown field: a service sets none that changes the meaning of an answer, unless the robot's Open
  asked for it.

Either way there is a warning, on both sides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

FIRST_IGNORABLE = 100
"""Fields with this number or a higher one may be ignored by a service that does not know them."""
_MOST = 16  # named of a message
_log = logging.getLogger("edgeflow_client")


@dataclass(frozen=True, slots=True)
class UnknownField:
    """A field that the description of its message does not have, or has with another type."""

    message: str
    """Path of the message, such as `message.open`."""
    number: int

    def __str__(self) -> str:
        return f"{self.message}.{self.number}"


def unknown_fields(message: Message, path: str) -> list[UnknownField]:
    """The first of the unknown fields of a message and of those in it, those that may not be ignored in front.

    path: of the message. Takes time for every unknown field: the message should be small.
    """
    found = sorted(_found(message, path), key=lambda each: each.number >= FIRST_IGNORABLE)
    return list(islice(found, _MOST))


def _found(message: Message, path: str) -> Iterator[UnknownField]:
    unknown = UnknownFieldSet(message)
    yield from (UnknownField(path, unknown[index].field_number) for index in range(len(unknown)))
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                yield from _found(part, f"{path}.{field.name}")


class VersionWarnings:
    """Warns of a service with another version than the SDK: once if it is newer, and once if it is older."""

    def __init__(self) -> None:
        self._newer = self._older = False

    def answer(self, message: Message, path: str) -> None:
        """Look for unknown fields in a message of the service."""
        if not self._newer and (unknown := unknown_fields(message, path)):
            self._newer = True
            _log.warning("the service is newer than this SDK, which ignores %s", ", ".join(map(str, unknown)))

    def notice(self, text: str) -> None:
        """The service says that it ignores something."""
        if not self._older:
            self._older = True
            _log.warning("the service is older than this SDK, and ignores some of what it sends: %s", text)
