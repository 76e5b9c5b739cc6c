"""openpi's websocket: metadata at connect, then one reply for each observation, on a connection that stays open.

RoboArena's requests (`endpoint`), vLLM-Omni's (the same, with replies in msgpack) and StarVLA's (an envelope with
`type` and `payload`) are understood beside openpi's own. Arrays are answered in the coding in which they came.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeflow.config.matching import Names, short
from edgeflow.config.service import ServiceConfig
from edgeflow.contract import PolicyInputs
from edgeflow.service.frontends.control import ControlView
from edgeflow.service.frontends.numpy_msgpack import ArrayCoding, pack, unpack
from edgeflow.service.frontends.observation import ClientObservation, Reader
from edgeflow.service.frontends.sessions import NoAction, RobotAnswer, RobotConnection, reason_of, rows_of
from edgeflow.service.observe.log import Log
from edgeflow.service.observe.process_metrics import ProcessMetrics
from edgeflow.service.sessions.rates import RollingCount
from edgeflow_client.errors import EdgeflowError, InvalidArgument, Unavailable
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Command

NAME = "openpi"
PATHS = ("/", "/openpi/policy", "/v1/realtime/robot/openpi")
MSGPACK_PATH = PATHS[2]  # vLLM-Omni's: every reply there is msgpack
MAX_VALUES = 4096  # of a message: keys, numbers and containers; an array is one
MOST_TEXT = 1000  # characters of an error
TEXTS = ("prompt", "task", "instruction")
IGNORED = frozenset({"noise", "seed", "num_inference_steps", "sampling_params", "session_id", "endpoint"})
ENVELOPE = ("type", "payload")
ALONE = ("ping", "init")  # types of envelopes that need no payload
RESET = "reset successful"


@dataclass(slots=True, kw_only=True)
class OpenpiRequest:
    """A message of a client."""

    kind: str
    """infer, reset, or one of ALONE."""
    observation: Mapping[str, Any]
    coding: ArrayCoding
    envelope: Mapping[str, Any] | None = None
    """StarVLA's envelope; None without one."""


class OpenpiConversation:
    """One connection's messages and replies. Control is asked for one action at a time.

    check_open: raises Unavailable once the service is stopping.
    """

    def __init__(
        self,
        config: ServiceConfig,
        *,
        control: ControlView,
        connection: RobotConnection,
        path: str,
        log: Log,
        metrics: ProcessMetrics,
        check_open: Callable[[], None],
    ) -> None:
        self._log = log
        self._metrics = metrics
        self._check_open = check_open
        self._control = control
        self._connection = connection
        self._reader = Reader(config, NAME)
        self._all_msgpack = path == MSGPACK_PATH
        self._session_id: str | None = None
        self._total_ms: float | None = None  # of the reply before
        self._rejections = RollingCount(config.limits.rejected_frames)
        self._too_many = False

    async def reply(self, data: bytes | str | None, received_ns: int) -> bytes | str:
        """The reply to a message: bytes or, for an error and after a reset, text. received_ns: its arrival time."""
        request: OpenpiRequest | None = None
        try:
            if not isinstance(data, bytes):
                raise InvalidArgument("must be binary: msgpack", field="message", reason=Reason.MESSAGE_UNPARSABLE)
            request = read_request(data)
            self._check_open()
            answer = await self._answer(request, received_ns)
            if isinstance(answer, dict):
                self._total_ms = (time.monotonic_ns() - received_ns) / 1e6
            return answer if isinstance(answer, str) else pack(_enveloped(request, answer), request.coding)
        except EdgeflowError as error:
            if not isinstance(error, NoAction | Unavailable):
                self._too_many = self._rejections.exceeded(received_ns)
            return self.rejection(error, request)
        except Exception as error:
            text = f"internal error, incident {self._log.incident('openpi', error)}"
            return self.rejection(EdgeflowError(text), request)

    def rejection(self, error: EdgeflowError, request: OpenpiRequest | None = None) -> bytes | str:
        """The reply without an action: one line with the field and the limit, or the reason of a HOLD."""
        reason = reason_of(error)
        self._metrics.client_refusals.labels(NAME, reason).inc()
        command = error.command if isinstance(error, NoAction) else "rejected"
        command = Command.HOLD.value if isinstance(error, Unavailable) else command
        text = " ".join(f"{command.upper()} {reason}: {error.text}".split())[:MOST_TEXT]
        if request is not None and request.envelope is not None:
            shown = {key: request.envelope.get(key) for key in ("type", "request_id")}
            return pack({"status": "error", "ok": False, **shown, "error": {"message": text}}, request.coding)
        if self._all_msgpack:
            coding = request.coding if request is not None else ArrayCoding.OPENPI
            return pack({"type": "error", "message": text}, coding)
        return text

    def close_reason(self) -> str:
        """The reason to close the connection; "" = keep it open."""
        return "too many rejected messages in 10 s" if self._too_many else ""

    async def _answer(self, request: OpenpiRequest, received_ns: int) -> dict[str, Any] | str:
        if request.kind in ALONE:
            return {}
        if request.kind == "reset":
            self._connection.reset()
            return {"status": RESET} if self._all_msgpack or request.envelope is not None else RESET
        inputs = await self._control.loaded()
        session_id = request.observation.get("session_id")
        if isinstance(session_id, str) and session_id != self._session_id:
            if self._session_id is not None:
                self._connection.reset()
            self._session_id = session_id
        opened, frame = self._reader.read(seen_of(request.observation), inputs)
        answer = await self._connection.act(opened, frame, received_ns)
        return self._found(answer, received_ns)

    def _found(self, answer: RobotAnswer, received_ns: int) -> dict[str, Any]:
        """The chunk and the timings. Nothing else may be an array, because clients cut every array into rows."""
        action = answer.action
        server: dict[str, float] = {"infer_ms": (time.monotonic_ns() - received_ns) / 1e6}
        if self._total_ms is not None:
            server["prev_total_ms"] = self._total_ms
        server |= {
            "age_ms": answer.age_ns / 1e6,
            "valid_for_ms": action.valid_for_ms,
            "epoch": answer.epoch,
            "seq": action.seq,
        }
        return {
            "actions": rows_of(action).astype(np.float32),
            "policy_timing": {"infer_ms": action.timings.inference_ns / 1e6},
            "server_timing": server,
        }


def read_request(data: bytes) -> OpenpiRequest:
    """A message in any of the dialects; InvalidArgument names the field."""
    value, coding = unpack(data, MAX_VALUES)
    if not isinstance(value, dict):
        raise InvalidArgument("must be a map", field="message", reason=Reason.BODY_SHAPE)
    envelope: dict[str, Any] | None = None
    known, field = ["infer", "reset"], "endpoint"
    kind = value.get("type")
    if all(key in value for key in ENVELOPE) or (isinstance(kind, str) and kind in ALONE):
        envelope, payload = value, value.get("payload")
        value = {} if payload is None else payload
        if not isinstance(value, dict):
            raise InvalidArgument("must be a map", field="payload", reason=Reason.BODY_SHAPE)
        known, field = [*known, *ALONE], "type"
    else:
        kind = value.get("endpoint", "infer")
    if not isinstance(kind, str) or kind not in known:
        raise InvalidArgument(f"must be {' or '.join(known)}", field=field, reason=Reason.BODY_FIELD)
    return OpenpiRequest(kind=kind, observation=value, coding=coding, envelope=envelope)


def seen_of(observation: Mapping[str, Any]) -> ClientObservation:
    """The images, the state and the text of an observation, by the client's names; everything else is ignored."""
    images: dict[str, Any] = {}
    state: dict[str, Any] = {}
    texts: dict[str, str] = {}
    fields = {"cameras": "observation", "state": "observation", "instruction": TEXTS[0]}
    leaves = list(_leaves(observation))
    named = Counter(name for name, _, _ in leaves)
    for leaf, path, value in leaves:
        name = leaf if named[leaf] == 1 else path  # two arms may each have a camera of the same name
        fields[name] = path
        if isinstance(value, np.ndarray) and value.ndim > 1:
            images[name] = value
        elif isinstance(value, np.ndarray) or (isinstance(value, int | float) and not isinstance(value, bool)):
            state[name] = np.asarray(value)
        elif isinstance(value, list) and value and all(type(each) in (int, float) for each in value):
            state[name] = np.array(value, np.float64)
        elif isinstance(value, str | bytes) and name in (*TEXTS, "unnorm_key"):
            texts[name] = _text(value, path)
    instruction = next((texts[each] for each in TEXTS if each in texts), "")
    return ClientObservation(
        images=images, state=state, instruction=instruction, unnorm_key=texts.get("unnorm_key", ""), fields=fields
    )


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str, Any]]:
    """The values of a map and of the maps in it: the name in its own map, the whole path, and the value."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{name}.")
        elif name not in IGNORED:
            yield name, path + name, value


def _text(value: str | bytes, field: str) -> str:
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("is not UTF-8", field=field, reason=Reason.TEXT_BAD_CHARACTER) from None


def _enveloped(request: OpenpiRequest, answer: dict[str, Any]) -> dict[str, Any]:
    if request.envelope is None:
        return answer
    shown = {"type": request.envelope.get("type"), "request_id": request.envelope.get("request_id")}
    return {"status": "ok", "ok": True, **shown, "data": answer}


def metadata(config: ServiceConfig, inputs: PolicyInputs | None, model: Mapping[str, Any]) -> dict[str, Any]:
    """The first message to a client: the policy's metadata and the additions of the configuration.

    inputs: None while no policy is loaded. model: its entry in /v1/models.
    """
    found: dict[str, Any] = {"model": config.alias}
    if inputs is not None:
        clients = Names.of(config, inputs, NAME).cameras
        names = [clients.get(need.name, short(need.name)) for need in inputs.cameras]
        sizes = {(need.height, need.width) for need in inputs.cameras}
        resolution = next(iter(sizes)) if len(sizes) == 1 else (0, 0)
        found |= {
            "image_resolution": list(resolution) if all(resolution) else None,
            "n_external_cameras": sum("exterior" in name for name in names),
            "needs_wrist_camera": any("wrist" in name for name in names),
            "needs_stereo_camera": False,
            "needs_session_id": False,
            "action_horizon": model.get("horizon"),
            "action_chunk_size": model.get("horizon"),
            "available_unnorm_keys": model.get("unnorm_keys", []),
            "control_rate_hz": model.get("control_rate_hz"),
            "actions": model.get("actions", []),
        }
    return found | config.frontends.openpi.metadata
