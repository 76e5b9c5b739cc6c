"""POST /v1/act: its JSON or msgpack body as an ActRequest."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from edgeflow.errors import InvalidArgument
from edgeflow.reasons import Reason
from edgeflow.rpc import control_pb2 as pb
from edgeflow.service.http.bodies import JSON_TYPE, MSGPACK_TYPES, media_type, parse_json, parse_msgpack
from edgeflow.service.images.jpeg import read_jpeg

MAX_PROPRIO = 4096  # the highest limit that a configuration can set
MAX_VALUES = 2 * MAX_PROPRIO + 64  # msgpack counts keys too
MAX_FIELD = 100  # characters of a name that an answer repeats
_FORMATS = {"jpeg": pb.IMAGE_FORMAT_JPEG, "rgb8": pb.IMAGE_FORMAT_RGB8}
_MODES = {
    "": pb.MODE_UNSPECIFIED,
    "serial": pb.MODE_SERIAL,
    "pipelined": pb.MODE_PIPELINED,
    "speculative": pb.MODE_SPECULATIVE,
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
    """Refuse the first member that is not a number: the library would describe every one of them."""
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_PROPRIO:
        raise InvalidArgument(
            f"must not have more than {MAX_PROPRIO} values", field="proprio", reason=Reason.PROPRIO_COUNT
        )
    for name, number in value.items():
        if type(number) not in (int, float):
            raise InvalidArgument("must be a number", field=_field("proprio", name), reason=Reason.BODY_FIELD)
    return value


class ActBody(BaseModel):
    """One observation. image: a JPEG, or height*width*3 raw bytes with format rgb8."""

    model_config = ConfigDict(extra="forbid", strict=True)

    image: Annotated[bytes, BeforeValidator(_bytes_of)] = Field(description="base64 in JSON, raw bytes in msgpack")
    instruction: str
    format: str = Field("jpeg", pattern="^(jpeg|rgb8)$")
    width: int = Field(0, ge=0, lt=1 << 32, description="required with rgb8; read from the header of a JPEG")
    height: int = Field(0, ge=0, lt=1 << 32, description="required with rgb8")
    proprio: Annotated[dict[str, float], BeforeValidator(_named_numbers)] = Field(
        default_factory=dict, description="proprioceptive values by name"
    )
    model: str = ""
    unnorm_key: str = ""
    mode: str = Field("", pattern="^(|serial|pipelined|speculative)$")


def parse_body(content_type: str, body: bytes) -> ActBody:
    """Parse and validate a body; RequestErrors name the field."""
    kind = media_type(content_type, (JSON_TYPE, *MSGPACK_TYPES))
    value = parse_json(body, MAX_VALUES) if kind == JSON_TYPE else parse_msgpack(body, MAX_VALUES)
    if not isinstance(value, dict):
        raise InvalidArgument("must be an object", field="body", reason=Reason.BODY_SHAPE)
    unknown = next((key for key in value if key not in ActBody.model_fields), None)
    if unknown is not None:
        raise InvalidArgument("is not a field of this request", field=_field(unknown), reason=Reason.BODY_FIELD)
    try:
        return ActBody.model_validate(value)
    except ValidationError as error:
        detail = error.errors(include_input=False, include_url=False, include_context=False)[0]
        message = detail["msg"].removeprefix("Value error, ")
        raise InvalidArgument(message, field=_field(*detail["loc"]), reason=Reason.BODY_FIELD) from None


def act_request(body: ActBody) -> pb.ActRequest:
    """The observation as a protobuf message, whose contents are checked like those of gRPC."""
    width, height = body.width, body.height
    if body.format == "jpeg" and not (width and height):
        header = read_jpeg(body.image, "image")
        width, height = header.width, header.height
    camera = pb.Camera(name="image", width=width, height=height, format=_FORMATS[body.format])
    opened = pb.Open(
        model=_text(body.model, "model"),
        cameras=[camera],
        proprio_names=[_text(name, "proprio") for name in body.proprio],
        instruction=_text(body.instruction, "instruction"),
        mode=_MODES[body.mode],
        unnorm_key=_text(body.unnorm_key, "unnorm_key"),
    )
    frame = pb.Frame(seq=1, images=[pb.Image(data=body.image)], proprio=_floats(body.proprio))
    return pb.ActRequest(open=opened, frame=frame)


def _text(text: str, field: str) -> str:
    """Refuse unpaired surrogates, which JSON can carry and protobuf strings cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument("is not valid Unicode", field=field, reason=Reason.TEXT_BAD_CHARACTER) from None
    return text


def _floats(proprio: dict[str, float]) -> list[float]:
    """The values for 32-bit floats; larger ones become infinite, which the frame check refuses by name."""
    return [value if abs(value) <= 3.4e38 else float("inf") for value in proprio.values()]


def _field(*path: object) -> str:
    """The name of a field as an answer repeats it."""
    return ".".join(str(part)[:MAX_FIELD] for part in path)[:MAX_FIELD]
