"""Messages of a stream after Open, given to the session as checked values or typed errors."""

from __future__ import annotations

from edgeflow.config.sections import LimitsConfig
from edgeflow.service.grpc.codec import Received, Unparsable, check_frame
from edgeflow.service.grpc.fields import check_text, refuse_unknown_fields
from edgeflow.service.observation.requests import CheckedFrame, OpenRequest
from edgeflow.service.sessions.events import End
from edgeflow.service.sessions.runner import SessionRunner
from edgeflow_client.errors import AlreadyExists, InvalidArgument, RequestError
from edgeflow_client.reasons import Reason
from edgeflow_client.rpc import control_pb2 as pb


def unparsable() -> InvalidArgument:
    """The error for bytes that are not a message."""
    return InvalidArgument("is not a valid protobuf message", field="message", reason=Reason.MESSAGE_UNPARSABLE)


def receive(received: Received[pb.ClientMessage] | Unparsable, runner: SessionRunner, limits: LimitsConfig) -> None:
    """Handle one message; the stream continues whatever it contains."""
    if runner.session.ended is not None:
        return
    if isinstance(received, Unparsable):
        runner.reject(0, unparsable())
        return
    match received.message.WhichOneof("kind"):
        case "frame":
            frame, request = received.message.frame, runner.session.request
            runner.receive_frame(frame.seq, frame.stamp_ns, lambda: _contents(received, request, limits))
        case "reset":
            _reset(received.message.reset, runner, limits)
        case "close":
            runner.end(End("OK", Reason.CLIENT_CLOSED))
        case "open":
            runner.reject_message(
                AlreadyExists("this stream already has a session", field="open", reason=Reason.SESSION_OPEN)
            )
        case _:
            runner.reject(
                0,
                InvalidArgument("is empty: send a frame, reset or close", field="message", reason=Reason.MESSAGE_EMPTY),
            )


def _contents(received: Received[pb.ClientMessage], request: OpenRequest, limits: LimitsConfig) -> CheckedFrame:
    refuse_unknown_fields(received.message, "message")
    return check_frame(received, request, limits)


def _reset(message: pb.Reset, runner: SessionRunner, limits: LimitsConfig) -> None:
    try:
        refuse_unknown_fields(message, "reset")
        text = check_text(message.instruction, "reset.instruction", limits) if message.instruction else ""
    except RequestError as error:
        runner.reject_message(error)
    else:
        runner.reset(text)
