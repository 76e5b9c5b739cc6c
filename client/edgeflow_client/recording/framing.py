"""The records of an MCAP file, up to its damage, within bounds that hostile lengths cannot leave.

The `mcap` library reads the contents of a record. Its own readers believe the lengths in a file, so that a few bytes
may ask for more memory than there is; here a length is compared with the bytes that are there first.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Channel, Chunk, Message, Metadata

from edgeflow_client.files import open_regular

MAGIC = b"\x89MCAP0\r\n"
MOST_CHUNK = 256 << 20  # bytes, compressed or not
MOST_MESSAGE = 64 << 20
MOST_OTHER = 1 << 20  # bytes of a channel or of metadata
_FRAME = struct.Struct("<BQ")  # opcode, length
_SKIPPED = {Opcode.HEADER, Opcode.SCHEMA, Opcode.MESSAGE_INDEX, Opcode.ATTACHMENT}
_SUMMARY = {*_SKIPPED, Opcode.CHANNEL, *range(Opcode.CHUNK_INDEX, Opcode.SUMMARY_OFFSET + 1)}
_UNREADABLE = (McapError, zstandard.ZstdError, struct.error, ValueError, OverflowError, EOFError)

ReadRecord: TypeAlias = Channel | Message | Metadata


@dataclass(frozen=True, slots=True)
class Damage:
    """The place up to which a file is read."""

    file: Path
    offset: int
    """Bytes before it."""
    text: str


class _Unreadable(ValueError):
    """A damage, in words."""


def read_records(path: Path, damage: list[Damage]) -> Iterator[tuple[int, ReadRecord]]:
    """Channels, messages and metadata of a file in its order, each with the bytes of the file before it or its chunk.

    Where the file is damaged they end, and damage gets an entry.
    """
    offset = 0
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if stream.read(len(MAGIC)) != MAGIC:
                raise _Unreadable("it does not begin as an MCAP file")
            offset, summary = len(MAGIC), False
            while True:
                opcode, length = _frame(stream, size - offset)
                if opcode == Opcode.FOOTER and summary:
                    _check_end(stream, length)
                    return
                if opcode == Opcode.DATA_END and not summary:
                    summary = True
                elif opcode not in _SUMMARY if summary else opcode in (Opcode.DATA_END, Opcode.FOOTER):
                    raise _Unreadable(f"a record of kind {opcode:#04x} is not where it may be")
                if summary or opcode in _SKIPPED:
                    _skip(stream, opcode, length)
                else:
                    for record in _contents(opcode, _body(stream, opcode, length)):
                        yield offset, record
                offset += _FRAME.size + length
    except _UNREADABLE as error:
        text = str(error) if isinstance(error, _Unreadable) else "a record cannot be read"
        damage.append(Damage(path, offset, text))
    except OSError as error:
        damage.append(Damage(path, offset, error.strerror or "cannot be read"))


def _frame(stream: BinaryIO, rest: int) -> tuple[int, int]:
    """Opcode and length of the next record."""
    data = stream.read(_FRAME.size)
    if not data:
        raise _Unreadable("it has no end: it is still being written, its recorder was killed, or its disk failed")
    if len(data) < _FRAME.size:
        raise _Unreadable("a record is cut off")
    opcode, length = _FRAME.unpack(data)
    if length > rest - _FRAME.size:
        raise _Unreadable(f"a record of {length} bytes is cut off")
    return opcode, length


def _skip(stream: BinaryIO, opcode: int, length: int) -> None:
    if opcode == Opcode.MESSAGE_INDEX:  # one bit away from a chunk, which must not be skipped
        data = stream.read(6)
        if len(data) < 6 or int.from_bytes(data[2:], "little") != length - 6:
            raise _Unreadable("an index cannot be read")
        length -= 6
    stream.seek(length, os.SEEK_CUR)


def _check_end(stream: BinaryIO, length: int) -> None:
    if length > MOST_OTHER or stream.read(length + len(MAGIC) + 1)[length:] != MAGIC:
        raise _Unreadable("its end cannot be read")


def _body(stream: BinaryIO, opcode: int, length: int) -> bytes:
    most = {Opcode.CHUNK: MOST_CHUNK, Opcode.MESSAGE: MOST_MESSAGE}.get(Opcode(opcode), MOST_OTHER)
    if length > most:
        raise _Unreadable(f"a record has {length} bytes, and at most {most} are read")
    return stream.read(length)


def _contents(opcode: int, body: bytes) -> Iterator[ReadRecord]:
    """The contents of a record of the data section."""
    if opcode == Opcode.CHUNK:
        yield from _chunk(body)
        return
    stream = ReadDataStream(io.BytesIO(body))
    if opcode == Opcode.CHANNEL:
        yield Channel.read(stream)
    elif opcode == Opcode.MESSAGE:
        yield Message.read(stream, len(body))
    elif opcode == Opcode.METADATA:
        yield Metadata.read(stream)
    else:
        raise _Unreadable(f"a record has the unknown kind {opcode:#04x}")


def _chunk(body: bytes) -> Iterator[ReadRecord]:
    chunk = Chunk.read(ReadDataStream(io.BytesIO(body)))
    data = _uncompressed(chunk)
    at = 0
    while at < len(data):
        opcode, length = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        if length > len(data) - at:
            raise _Unreadable(f"a record of {length} bytes is cut off in its chunk")
        if opcode in (Opcode.CHANNEL, Opcode.MESSAGE):
            if length > (MOST_MESSAGE if opcode == Opcode.MESSAGE else MOST_OTHER):
                raise _Unreadable(f"a record in a chunk has {length} bytes")
            yield from _contents(opcode, data[at : at + length])
        at += length


def _uncompressed(chunk: Chunk) -> bytes:
    """The records of a chunk, compared with their checksum."""
    size = chunk.uncompressed_size
    if size > MOST_CHUNK:
        raise _Unreadable(f"a chunk has {size} bytes, and at most {MOST_CHUNK} are read")
    if chunk.compression == "zstd":
        if zstandard.frame_content_size(chunk.data) not in (-1, size):  # the library would believe it
            raise _Unreadable("a chunk has another size than it says")
        data = zstandard.decompress(chunk.data, size) if size else b""
    elif chunk.compression == "":
        data = chunk.data
    else:
        raise _Unreadable(f"a chunk is compressed by {chunk.compression[:16]!r}, and zstd is read")
    if len(data) != size:
        raise _Unreadable("a chunk has another size than it says")
    if chunk.uncompressed_crc and zlib.crc32(data) != chunk.uncompressed_crc:
        raise _Unreadable("a chunk differs from its checksum")
    return data
