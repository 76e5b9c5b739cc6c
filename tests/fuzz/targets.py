"""The fuzzed functions: bytes in, and nothing out except edgeflow's own errors. Any other exception is a finding."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from random import Random

import numpy as np
from pydantic import BaseModel

from edgeflow.config.sections import LimitsConfig
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import CameraNeed, PolicyInputs
from edgeflow.service.chat.body import MAX_MESSAGES, ChatBody, CompletionBody, TokenizeBody, parse
from edgeflow.service.chat.front import PrefixBody
from edgeflow.service.chat.schemas import MAX_SCHEMA_BYTES
from edgeflow.service.frontends.act import act_request, parse_body
from edgeflow.service.frontends.grpc.checks import check_open, ignored_fields
from edgeflow.service.frontends.grpc.codec import Unparsable, check_frame, parse_client_message
from edgeflow.service.frontends.numpy_json import array_json
from edgeflow.service.frontends.numpy_msgpack import ArrayCoding, pack, unpack
from edgeflow.service.frontends.observation import Reader
from edgeflow.service.frontends.openpi import MAX_VALUES
from edgeflow.service.frontends.openvla import read
from edgeflow.service.http.bodies import JSON_TYPE, MSGPACK_TYPES
from edgeflow.service.observation.jpeg import read_jpeg
from edgeflow.service.observation.pixels import check_image, decode_jpeg
from edgeflow_client.errors import RequestError
from edgeflow_client.rpc import control_pb2 as pb
from edgeflow_client.types import CameraSpec, ImageFormat
from tests.fuzz import pictures
from tests.fuzz.kinds import KINDS, OPEN, good_frame

LIMITS = LimitsConfig()
OPENED = check_open(OPEN, "demo", LIMITS)
MAX_PIXELS = 1 << 14  # larger images only take longer to decode
SEED_BYTES = 8192
Target = Callable[[bytes], None]


def parser(data: bytes) -> None:
    """A stream message, as the service reads and checks it."""
    received = parse_client_message(data)
    if isinstance(received, Unparsable):
        return
    message = received.message
    with contextlib.suppress(RequestError):
        ignored_fields(message, received.source)
    with contextlib.suppress(RequestError):
        if message.WhichOneof("kind") == "frame":
            frame = check_frame(received, OPENED, LIMITS)
            assert len(frame.images) == len(OPENED.cameras) and all(frame.images)
        elif message.WhichOneof("kind") == "open":
            opened = check_open(message.open, "demo", LIMITS)
            assert opened.instruction.strip() and 1 <= len(opened.cameras) <= LIMITS.cameras


def image(data: bytes) -> None:
    """An image that was opened with the size it declares: whatever the checks accept, the decoder decodes
    or rejects.
    """
    with contextlib.suppress(RequestError):
        header = read_jpeg(data, "image")
        if header.width * header.height <= MAX_PIXELS:
            camera = CameraSpec("camera", header.width, header.height, ImageFormat.JPEG)
            check_image(data, camera, "image")
            pixels = decode_jpeg(data, camera, "image")
            assert pixels.shape == (header.height, header.width, 3) and pixels.dtype == "uint8"


def body(data: bytes) -> None:
    """An HTTP body; its first byte says of which type."""
    kind = JSON_TYPE if data[:1] < b"\x80" else MSGPACK_TYPES[0]
    with contextlib.suppress(RequestError):
        request = act_request(parse_body(kind, data[1:]))
        opened = request.message.open
        opened.control_period_ms = 1000
        check_frame(request, check_open(opened, "demo", LIMITS), LIMITS)


def chat(data: bytes) -> None:
    """A body of a chat route; its first byte says of which."""
    kind = CHAT_BODIES[data[0] % len(CHAT_BODIES)] if data else ChatBody
    with contextlib.suppress(RequestError):
        parsed = parse(kind, JSON_TYPE, data[1:])
        json.dumps(parsed.model_dump(mode="json"))
        if isinstance(parsed, ChatBody):
            assert len(parsed.answer_schema.text) <= MAX_SCHEMA_BYTES and len(parsed.messages) <= MAX_MESSAGES


def openpi(data: bytes) -> None:
    """A message on openpi's websocket: its value, whose arrays are plain numbers in C order."""
    with contextlib.suppress(RequestError):
        value, coding = unpack(data, MAX_VALUES)
        json.dumps(value, default=_described)
        assert unpack(pack(value, coding), MAX_VALUES)[1] in (coding, ArrayCoding.OPENPI)


def _described(value: object) -> str:
    if isinstance(value, np.ndarray):
        assert value.dtype.kind in "biuf" and value.flags.c_contiguous and len(value.tobytes()) == value.nbytes
    return type(value).__name__


def act(data: bytes) -> None:
    """A body of `POST /act` in one of its dialects, and the frame that is made of it."""
    with contextlib.suppress(RequestError):
        seen, _ = read(data)
        _, frame = ACT_READER.read(seen, ACT_INPUTS)
        assert all(map(len, frame.images)) and np.isfinite(frame.state).all()


ACT_READER = Reader(ServiceConfig(), "openvla")
ACT_INPUTS = PolicyInputs(cameras=(CameraNeed(name="image", named=False),))
CHAT_BODIES: tuple[type[BaseModel], ...] = (ChatBody, CompletionBody, TokenizeBody, PrefixBody)
TARGETS: dict[str, Target] = {
    "parser": parser,
    "image": image,
    "body": body,
    "chat": chat,
    "openpi": openpi,
    "act": act,
}


def seeds(name: str) -> list[bytes]:
    """Where a run starts: real messages, and every kind of bad one."""
    rng = Random(0)
    frame = good_frame(2, 1_000_000)
    if name == "parser":
        opened = pb.ClientMessage(open=OPEN).SerializeToString()
        others = [pb.ClientMessage(reset=pb.Reset(instruction="again")), pb.ClientMessage(close=pb.Close())]
        found = [opened, *[message.SerializeToString() for message in others]]
        found += [kind.spoil(frame, rng) for kind in KINDS.values() for _ in range(3)]
    elif name == "image":
        picture = frame.images[0].data
        found = [picture, pictures.picture(8, 8), pictures.with_scans(picture, 3)]
        found += [pictures.saved(16, 8, mode, "JPEG") for mode in ("L", "RGB", "CMYK")]
        found += [pictures.bomb(picture, rng) for _ in range(3)]
    elif name == "openpi":
        array = np.arange(6, dtype="<f4").reshape(2, 3)
        value = {"images": {"top": array}, "state": array[0], "t": [1, 0.5, None], "prompt": "go"}
        found = [pack(value, coding) for coding in ArrayCoding]
        found += [b"\x81\xa1t\x83\xc4\x0d__npgeneric__\xc3\xc4\x04data\xcb?\xf8" + bytes(6) + b"\xc4\x05dtype\xa3<f4"]
        found += [b"\x81\xa1n\x83\xa2nd\xc2\xa4type\xa3<i2\xa4data\xc4\x02\x07\x00"]
    elif name == "act":
        pixels = np.arange(12, dtype="u1").reshape(1, 2, 2, 3)
        bodies = [
            {"image": array_json(pixels[0]), "instruction": "go", "unnorm_key": None},
            {"full_image": array_json(pixels[0]), "a_wrist": pixels[0].tolist(), "state": [0.5], "instruction": "go"},
            {"observation": {"video.top": array_json(pixels), "state.arm": [[1]], "annotation.task": ["go"]}},
        ]
        found = [json.dumps(each).encode() for each in bodies]
        found += [json.dumps({"encoded": each.decode()}).encode() for each in found]
    elif name == "chat":
        turn = {"role": "user", "content": [{"type": "text", "text": "<|im_end|>"}]}
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, 1e999]}'}}
        schema = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "type": "object", "properties": {"b": {"$ref": "#"}}}
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        answer = {"role": "assistant", "tool_calls": [call]}
        bodies = [
            {"messages": [turn, answer], "tools": [tool], "tool_choice": "required", "stop": ["a"]},
            {"prompt": "x", "logprobs": 1, "stream_options": {"include_usage": True}, "temperature": 0.5},
            {"messages": [turn]},
            {"messages": [{"role": "system", "content": "x"}]},
        ]
        found = [bytes([index]) + json.dumps(each).encode() for index, each in enumerate(bodies)]
    else:
        found = [b'\x00{"image": "gICA", "format": "rgb8", "width": 1, "height": 1, "instruction": "go"}']
        found += [b"\x00" + b'{"image": "/9j/", "instruction": "\\ud800", "proprio": {"a": 1e999}, "mode": "serial"}']
        found += [
            b'\x00{"images": {"top": "/9j/", "a": {"data": "gICA", "format": "rgb8", "width": 1, "height": 1}}, '
            b'"instruction": "go", "state": {"s": [0.5, 1e999], "g": 1}}'
        ]
        found += [b"\xff\x83\xa5image\xc4\x03\xff\xd8\xff\xabinstruction\xa2go\xa7proprio\x81\xa1a\xcb?\xf0" + bytes(6)]
    return [seed for seed in found if len(seed) <= SEED_BYTES]
