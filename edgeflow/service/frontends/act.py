"""POST /v1/act in the gateway: reads, parses, checks and matches an observation, and writes the answer."""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from starlette.requests import HTTPConnection, Request

from edgeflow.config.matching import Names
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import PolicyInputs
from edgeflow.service.children.messages import ActDone
from edgeflow.service.frontends.control import CheckedObservation
from edgeflow.service.frontends.grpc.codec import ParsedMessage, check_act
from edgeflow.service.http.bodies import JSON_TYPE, MSGPACK_TYPES, media_type, parse_json, parse_msgpack
from edgeflow.service.http.body_reader import BodyReader
from edgeflow.service.observation.jpeg import read_jpeg
from edgeflow.service.observation.requests import OpenRequest, matched, trace_context
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb

MAX_PROPRIO = 4096  # the highest limits that a configuration can set
MAX_CAMERAS = 16
MAX_VALUES = 2 * MAX_PROPRIO + 64  # msgpack counts keys too
MAX_FIELD = 100  # characters of a client's name that an error repeats
_FORMATS = {"jpeg": pb.IMAGE_FORMAT_JPEG, "rgb8": pb.IMAGE_FORMAT_RGB8}
_MODES = {
    "": pb.MODE_UNSPECIFIED,
    "serial": pb.MODE_SERIAL,
    "pipelined": pb.MODE_PIPELINED,
    "speculative": pb.MODE_SPECULATIVE,
    "auto": pb.MODE_AUTO,
}


def _bytes_of(value: object) -> object:
    """Decode base64 text (JSON); bytes (msgpack) pass unchanged."""
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise ValueError("must be base64") from error
    return value


def _named_numbers(value: object) -> object:
    """Reject the first member that is not a number: the library would describe each of them."""
    if not isinstance(value, dict):
        return value
    _check_count(len(value), "proprio")
    for name, number in value.items():
        if type(number) not in (int, float):
            raise InvalidArgument("must be a number", field=_field("proprio", name), reason=Reason.BODY_FIELD)
    return value


def _named_vectors(value: object) -> object:
    """The same for vectors, where a number stands for a vector of one."""
    if not isinstance(value, dict):
        return value
    vectors = {name: each if isinstance(each, list) else [each] for name, each in value.items()}
    _check_count(sum(map(len, vectors.values())), "state")
    for name, numbers in vectors.items():
        if not all(type(number) in (int, float) for number in numbers):
            text = "must be a number or a list of numbers"
            raise InvalidArgument(text, field=_field("state", name), reason=Reason.BODY_FIELD)
    return vectors


def _named_images(value: object) -> object:
    """Images by camera; a plain value stands for a JPEG."""
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_CAMERAS:
        text = f"must not have more than {MAX_CAMERAS} images"
        raise InvalidArgument(text, field="images", reason=Reason.CAMERA_COUNT)
    return {name: {"data": each} if isinstance(each, str | bytes) else each for name, each in value.items()}


def _check_count(numbers: int, field: str) -> None:
    if numbers > MAX_PROPRIO:
        text = f"must not have more than {MAX_PROPRIO} values"
        raise InvalidArgument(text, field=field, reason=Reason.PROPRIO_COUNT)


_Image = Annotated[bytes, BeforeValidator(_bytes_of)]
_IMAGE_TEXT = "base64 in JSON, raw bytes in msgpack"
_FORMAT_TEXT = "a JPEG, or height x width x 3 bytes"
_WIDTH_TEXT = "required with rgb8; read from the header of a JPEG"


class ImageBody(BaseModel):
    """The image of one camera."""

    model_config = ConfigDict(extra="forbid", strict=True)

    data: _Image = Field(description=_IMAGE_TEXT)
    """A JPEG, or height*width*3 raw bytes with format rgb8."""
    format: str = Field("jpeg", pattern="^(jpeg|rgb8)$", description=_FORMAT_TEXT)
    width: int = Field(0, ge=0, lt=1 << 32, description=_WIDTH_TEXT)
    height: int = Field(0, ge=0, lt=1 << 32, description="required with rgb8")


_IMAGE_SCHEMA = {"anyOf": [{"type": "string", "format": "binary"}, ImageBody.model_json_schema()]}
_IMAGES_SCHEMA = {"type": "object", "additionalProperties": _IMAGE_SCHEMA, "maxProperties": MAX_CAMERAS}
_NUMBERS_SCHEMA = {"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]}
_STATE_SCHEMA = {"type": "object", "additionalProperties": _NUMBERS_SCHEMA}


class ActBody(BaseModel):
    """One observation: either `image` with its format and size, or `images`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    image: _Image = Field(b"", description=_IMAGE_TEXT)
    """A JPEG, or height*width*3 raw bytes with format rgb8."""
    images: Annotated[dict[str, ImageBody], BeforeValidator(_named_images), WithJsonSchema(_IMAGES_SCHEMA)] = Field(
        default_factory=dict, description="images by camera, instead of image; a JPEG may stand for its object"
    )
    instruction: str = Field(description="what the robot is to do")
    format: str = Field("jpeg", pattern="^(jpeg|rgb8)$", description=_FORMAT_TEXT)
    width: int = Field(0, ge=0, lt=1 << 32, description=_WIDTH_TEXT)
    height: int = Field(0, ge=0, lt=1 << 32, description="required with rgb8")
    proprio: Annotated[dict[str, float], BeforeValidator(_named_numbers)] = Field(
        default_factory=dict, description="proprioceptive values by name"
    )
    state: Annotated[dict[str, list[float]], BeforeValidator(_named_vectors), WithJsonSchema(_STATE_SCHEMA)] = Field(
        default_factory=dict,
        description="proprioceptive vectors by name, instead of proprio; a number may stand for a vector of one",
    )
    model: str = Field("", description="name of the policy; empty = the one that is served")
    unnorm_key: str = Field("", description="action statistics of the checkpoint; empty = its only ones")
    mode: str = Field(
        "",
        pattern="^(|serial|pipelined|speculative|auto)$",
        description="empty or auto: serial, since no frame before this one has tokens to draft from",
    )


def parse_body(content_type: str, body: bytes) -> ActBody:
    """Parse and validate a body; RequestErrors name the field."""
    kind = media_type(content_type, (JSON_TYPE, *MSGPACK_TYPES))
    value = parse_json(body, MAX_VALUES) if kind == JSON_TYPE else parse_msgpack(body, MAX_VALUES)
    if not isinstance(value, dict):
        raise InvalidArgument("must be an object", field="body", reason=Reason.BODY_SHAPE)
    unknown = next((key for key in value if key not in ActBody.model_fields), None)
    if unknown is not None:
        raise InvalidArgument("is not a field of this request", field=_field(unknown), reason=Reason.BODY_FIELD)
    if "image" not in value and "images" not in value:
        raise _no_image()
    try:
        return ActBody.model_validate(value)
    except ValidationError as error:
        detail = error.errors(include_input=False, include_url=False, include_context=False)[0]
        message = detail["msg"].removeprefix("Value error, ")
        raise InvalidArgument(message, field=_field(*detail["loc"]), reason=Reason.BODY_FIELD) from None


def act_request(body: ActBody) -> ParsedMessage[pb.ActRequest]:
    """The observation as a protobuf message, so that its contents are checked like those of gRPC."""
    images = _images(body)
    if body.proprio and body.state:
        raise InvalidArgument("replaces proprio: send one of them", field="state", reason=Reason.STATE_TWICE)
    opened = pb.Open(
        model=_text(body.model, "model"),
        cameras=[_camera(name, image, field) for field, name, image in images],
        proprio_names=[_text(name, "proprio") for name in body.proprio],
        state=[pb.StateVector(name=_text(name, "state"), size=len(each)) for name, each in body.state.items()],
        chunks=True,
        instruction=_text(body.instruction, "instruction"),
        mode=_MODES[body.mode],
        unnorm_key=_text(body.unnorm_key, "unnorm_key"),
    )
    numbers = [*body.proprio.values(), *chain.from_iterable(body.state.values())]
    frame = pb.Frame(seq=1, images=[pb.Image() for _ in images], proprio=_floats(numbers))
    return ParsedMessage(pb.ActRequest(open=opened, frame=frame), [image.data for _, _, image in images])


def _images(body: ActBody) -> list[tuple[str, str, ImageBody]]:
    """Each image with its field and the name of its camera; for `image`, both are "image"."""
    alone = "image" in body.model_fields_set
    if not alone and not body.images:
        raise _no_image()
    if not alone:
        for name in ("format", "width", "height"):
            if name in body.model_fields_set:
                text = "belongs to image; with images, each has its own"
                raise InvalidArgument(text, field=name, reason=Reason.BODY_FIELD)
        return [(_field("images", name), _text(name, "images"), image) for name, image in body.images.items()]
    if body.images:
        raise InvalidArgument("replaces image: send one of them", field="images", reason=Reason.BODY_FIELD)
    image = ImageBody(data=body.image, format=body.format, width=body.width, height=body.height)
    return [("image", "image", image)]


def _no_image() -> InvalidArgument:
    return InvalidArgument("is missing: send image or images", field="image", reason=Reason.BODY_FIELD)


def _camera(name: str, image: ImageBody, field: str) -> pb.Camera:
    width, height = image.width, image.height
    if image.format == "jpeg" and not (width and height):
        header = read_jpeg(image.data, field)
        width, height = header.width, header.height
    return pb.Camera(name=name, width=width, height=height, format=_FORMATS[image.format])


def _text(text: str, field: str) -> str:
    """Reject unpaired surrogates, which JSON can carry and protobuf strings cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument("is not valid Unicode", field=field, reason=Reason.TEXT_BAD_CHARACTER) from None
    return text


def _floats(numbers: Iterable[float]) -> list[float]:
    """Numbers as 32-bit floats; larger ones become infinite, which the frame check rejects by name."""
    return [value if abs(value) <= 3.4e38 else float("inf") for value in numbers]


def _field(*path: object) -> str:
    """The name of a field as errors repeat it."""
    return ".".join(str(part)[:MAX_FIELD] for part in path)[:MAX_FIELD]


def traced(opened: OpenRequest, connection: HTTPConnection, config: ServiceConfig) -> OpenRequest:
    """The request with the trace context of its client's connection; as it is where nothing is traced."""
    return replace(opened, trace=trace_context(connection.headers.items())) if config.trace.on else opened


OTHER_BYTES = 64 << 10  # of a body besides its images: text, numbers, names


def body_bytes(config: ServiceConfig) -> int:
    """The most bytes of an observation in base64; most of them are images."""
    limits = config.limits
    return min(limits.http_body_bytes, limits.cameras * limits.image_bytes * 4 // 3 + OTHER_BYTES)


class Observations:
    """Reads observations: a few large bodies at a time, of which one is parsed at a time."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        self._bodies = BodyReader(body_bytes(config), "an observation")
        self._parsing = asyncio.Lock()

    async def read(self, request: Request, inputs: PolicyInputs) -> CheckedObservation:
        """The observation of a request, checked and matched; RequestErrors name the field and the limit.

        inputs: what the policy needs.
        """
        config = self._config
        async with self._bodies.read(request) as body:
            received_ns = time.monotonic_ns()
            async with self._parsing:
                parsed = act_request(parse_body(request.headers.get("content-type", ""), body))
                opened, frame = check_act(parsed, config.alias, config.limits)
                opened = matched(opened, inputs, Names.of(config, inputs))
                opened = traced(opened, request, config)
            return CheckedObservation(opened=opened, frame=frame, received_ns=received_ns)


def act_answer(done: ActDone) -> dict[str, Any]:
    """The answer: the chunk and its first action, the schema, age limit, timings and validity."""
    action, schema = done.action, done.schema
    chunk, timings, report = action.chunk, action.timings, action.report
    return {
        "action": list(chunk.row(0)) if chunk else [],
        "chunk": [list(chunk.row(index)) for index in range(chunk.horizon)] if chunk else [],
        "step_ms": chunk.step_ms if chunk else 0.0,
        "command": action.command.value,
        "reason": action.reason,
        "token_ids": list(action.token_ids),
        "valid_for_ms": action.valid_for_ms,
        "max_age_ms": action.max_age_ms,
        "limited": [{**asdict(each), "limit": each.limit.value} for each in report.limited],
        "candidates": [asdict(each) for each in report.candidates],
        "chosen": report.chosen,
        "schema": {
            "names": list(schema.names),
            "units": list(schema.units),
            "low": _or_null(schema.low),
            "high": _or_null(schema.high),
            "relative": list(schema.relative),
            "frame": schema.frame,
            "rotation": schema.rotation,
            "control_rate_hz": schema.control_rate_hz,
            "whole_way": schema.whole_way,
            "horizon": schema.horizon,
            "step_ms": schema.step_ms,
        },
        "timings_ms": {
            "decode": timings.decode_ns / 1e6,
            "queue": timings.queue_ns / 1e6,
            "inference": timings.inference_ns / 1e6,
            "server": action.server_ns / 1e6,
        },
    }


def _or_null(limits: Sequence[float]) -> list[float | None]:
    """Limits for JSON, which has no infinity."""
    return [limit if math.isfinite(limit) else None for limit in limits]
