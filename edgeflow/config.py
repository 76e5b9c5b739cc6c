"""The one JSON file that configures the service, checked before anything starts.

Leaf module: the front and the worker both read it; it loads neither torch nor a web framework.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from edgeflow.errors import ConfigError
from edgeflow.model_paths import EMBEDDED_CHAT, EMBEDDED_CHAT_MODEL, EMBEDDED_MODEL, resolve_model

MAX_CONFIG_BYTES = 1 << 20


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class GrpcConfig(_Section):
    """Where the control plane listens; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = Field(50051, ge=0, le=65535)


class HttpConfig(_Section):
    """Where HTTP listens; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)


class TlsConfig(_Section):
    """PEM files; without a certificate there is no TLS. They are read again when they change."""

    cert: str = Field("", description="the service's certificate, with those between it and its CA")
    key: str = Field("", description="its private key, unreadable for others")
    client_ca: str = Field("", description="mutual TLS: whose certificates clients must show")

    @model_validator(mode="after")
    def _together(self) -> TlsConfig:
        if bool(self.cert) != bool(self.key):
            raise ValueError("cert and key come together")
        if self.client_ca and not self.cert:
            raise ValueError("client_ca needs cert and key")
        return self


class LimitsConfig(_Section):
    """What a client may send; beyond it the answer is a typed refusal."""

    message_bytes: int = Field(4 << 20, ge=1 << 10, le=64 << 20, description="one gRPC message")
    http_body_bytes: int = Field(8 << 20, ge=1 << 10, le=64 << 20, description="one HTTP request body")
    cameras: int = Field(4, ge=1, le=16, description="cameras of a session")
    image_bytes: int = Field(1 << 20, ge=1 << 10, le=64 << 20, description="one encoded or raw image")
    image_pixels: int = Field(4_000_000, ge=1, le=16_000_000, description="width times height of a camera")
    image_side: int = Field(8_192, ge=1, le=16_384, description="pixels of its longer side: policies may square frames")
    proprio: int = Field(256, ge=0, le=4096, description="proprioceptive values of a frame")
    text_bytes: int = Field(4096, ge=1, le=65536, description="an instruction in UTF-8")
    rate_hz: float = Field(60.0, gt=0, le=1000, description="frames a second of a session, whatever it declared")
    rate_factor: float = Field(2.0, ge=1, le=100, description="frames a second, times the declared rate")
    rejected_frames: int = Field(100, ge=1, le=100_000, description="refused frames in 10 s that end a stream")
    streams: int = Field(16, ge=1, le=1024, description="concurrent calls of a connection")
    session_age_s: float = Field(86400.0, gt=0, description="longest life of a session")
    sessions_per_principal: int = Field(2, ge=1, le=64, description="open sessions of one token's principal")
    http_connections: int = Field(256, ge=1, le=65536, description="open HTTP connections")
    http_connections_per_address: int = Field(16, ge=1, le=65536, description="open HTTP connections of one address")


class TimingConfig(_Section):
    """How long the service waits before it acts."""

    action_ttl_ms: int = Field(250, ge=10, le=500, description="how long a robot may execute an action")
    silent_hold_ms: int = Field(300, ge=10, le=60_000, description="silence before HOLD, at least 5 control periods")
    silent_free_ms: int = Field(1_000, ge=10, description="silence before a session's ring in the worker is freed")
    silent_end_ms: int = Field(30_000, ge=100, description="silence before a stream is ended")
    slow_reader_ms: int = Field(2_000, ge=100, description="unread answers before a stream is ended")
    act_timeout_ms: int = Field(10_000, ge=100, description="longest wait of a single action request")
    worker_progress_ms: int = Field(2_000, ge=100, description="no answer of the worker before it is replaced")
    worker_start_s: float = Field(900.0, gt=0, description="longest start of a worker, loading and warm-up")
    crash_limit: int = Field(3, ge=0, le=1000, description="workers that may be lost within crash_window_s")
    crash_window_s: float = Field(300.0, gt=0, description="one more than crash_limit in this time ends the service")
    handshake_ms: int = Field(2_000, ge=100, le=60_000, description="TLS, and the start of HTTP/2, on a connection")
    http_headers_ms: int = Field(5_000, ge=100, le=60_000, description="from a request's first byte to its body")
    http_body_ms: int = Field(10_000, ge=100, le=600_000, description="a request's body, at least 1 KiB a second")
    drain_ms: int = Field(3_000, ge=0, description="time for what is under way when the service stops")


class RealtimeConfig(_Section):
    """CPUs, priorities and locked memory; what is not permitted is told at start, and the service goes on.

    Priorities: 0 ordinary, -20 to -1 a nice level, 1 to 99 SCHED_FIFO.
    """

    front_cpus: list[int] = Field(default_factory=list, description="CPUs of the front; empty = any")
    worker_cpus: list[int] = Field(default_factory=list, description="CPUs of the worker; empty = any")
    front_priority: int = Field(0, ge=-20, le=99)
    worker_priority: int = Field(0, ge=-20, le=99)
    lock_memory: bool = Field(False, description="keep the front's pages in memory")


class ChatMessage(_Section):
    """One message of a fixed prefix."""

    role: Literal["system", "user", "assistant"]
    content: str = Field(min_length=1, max_length=1 << 20)


class ChatSlot(_Section):
    """A fixed prefix, computed once at start: messages through the model's chat template, or plain text."""

    id: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    messages: list[ChatMessage] = Field(default_factory=list, max_length=64)
    text: str = Field("", max_length=1 << 20)

    @model_validator(mode="after")
    def _one_of_both(self) -> ChatSlot:
        if bool(self.messages) == bool(self.text):
            raise ValueError(f"slot {self.id}: give messages or text")
        return self


class ChatConfig(_Section):
    """The chat plane: one model that answers one request at a time, beside the robots."""

    enabled: bool = Field(True, description="serve chat when there is a model for it")
    model: str = Field(EMBEDDED_CHAT, min_length=1, description="directory, hub id, or demo-chat (the embedded model)")
    decode_model: str = Field("", description="another checkpoint of the same shape, for decode steps; empty = model")
    alias: str = Field("", max_length=128, description="the name clients use; the last part of model if not given")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    weights: Literal["float", "int8", "fp8", "auto"] = Field(
        "float",
        description="int8: decode rows meet 8-bit weights (CPU); auto: where that is measured to be faster; "
        "fp8: as for the policy",
    )
    operators: str = Field("", description="overlay of `edgeflow tune` for the chat model; empty = what is built in")
    kv: Literal["model", "int8"] = Field("model", description="keys and values in the model's dtype, or in 8 bits")
    capacity: int = Field(2048, ge=16, le=131_072, description="positions of a slot: prompt and answer together")
    slots: list[ChatSlot] = Field(default_factory=list, max_length=16)
    max_tokens: int = Field(256, ge=1, description="of an answer, when the request does not say")
    max_tokens_limit: int = Field(2048, ge=1, description="of an answer, whatever the request says")
    queue: int = Field(16, ge=0, le=256, description="requests that may wait")
    queue_ms: int = Field(2_000, ge=1, description="longest wait; then 429 with Retry-After")
    request_s: float = Field(60.0, gt=0, description="longest answer")
    prefill_chunk: int = Field(256, ge=1, le=8192, description="rows of a prompt in one pass, at most")

    @property
    def name(self) -> str:
        """What clients call the model."""
        return self.alias or Path(self.model).name


class ServiceConfig(_Section):
    """Everything the service can be told; every key has a default."""

    model: str = Field(EMBEDDED_MODEL, min_length=1, description="directory, hub id, or demo (the embedded policy)")
    alias: str = Field(
        default_factory=lambda data: Path(data.get("model", EMBEDDED_MODEL)).name,
        min_length=1,
        max_length=128,
        description="the name clients use; the last part of model if not given",
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    weights: Literal["float", "fp8"] = Field(
        "float",
        description="fp8: of the language model, with FP8 rows (CUDA from sm_89; on a CPU emulated, not faster)",
    )
    operators: str = Field("", description="overlay of `edgeflow tune` for the policy; empty = what is built in")
    unnorm_key: str = Field("", description="statistics that un-normalise actions; empty = the model's only ones")
    center_crop: bool = Field(False, description="crop images to 0.9 of their area, as some fine-tunes expect")
    preprocess: Literal["auto", "host", "device"] = Field(
        "auto", description="where frames are resized and normalised, the same to the bit; auto: device on CUDA"
    )
    mode: Literal["serial", "pipelined", "depth", "auto"] = Field(
        "pipelined", description="for sessions that do not ask for one"
    )
    depth: int = Field(0, ge=0, le=64, description="ticks a frame takes in mode depth, 1 (serial) to K (pipelined)")
    max_action_age_ms: int = Field(0, ge=0, le=60_000, description="for sessions that state none; 0 = no limit")
    admission_headroom_percent: int = Field(
        20, ge=0, le=90, description="of the device, kept free when robots share it"
    )
    graphs: Literal["auto", "on", "off"] = Field(
        "auto", description="replay passes as CUDA graphs, recorded at start; auto: on CUDA in half precision"
    )
    shift: Literal["rotate", "copy"] = Field("rotate", description="how a ring of slots advances")
    max_sessions: int | None = Field(
        None,
        ge=1,
        le=64,
        description="sessions whose KV memory is reserved at start; unset = as many as fit into free memory, 1 to 8",
    )
    row_budget: int = Field(1024, ge=1, le=65536, description="rows a packed pass may have")
    drain_after_ms: int = Field(2, ge=0, le=10_000, description="wait for a frame before a decode-only pass")
    max_prompt_tokens: int = Field(128, ge=8, le=4096)
    profile: str = Field("none", min_length=1, description="none, orin, rtx5090 or a JSON file of pass times")
    threads: int = Field(0, ge=0, le=1024, description="CPU threads of the worker; 0 = one")
    decode_threads: int = Field(2, ge=1, le=64, description="threads that decode images in the front")
    grpc: GrpcConfig = GrpcConfig()
    http: HttpConfig = HttpConfig()
    limits: LimitsConfig = LimitsConfig()
    timing: TimingConfig = TimingConfig()
    standby: bool = Field(
        True, description="keep a worker in reserve, its libraries loaded, for when one is lost; about 160 MB"
    )
    realtime: RealtimeConfig = RealtimeConfig()
    chat: ChatConfig = ChatConfig()
    tls: TlsConfig = TlsConfig()
    tokens_file: str = Field("", description="who may do what (`edgeflow token new`); empty = whoever connects")
    insecure: bool = Field(False, description="allow addresses other than loopback without TLS and tokens")

    @model_validator(mode="after")
    def _depth_is_named(self) -> ServiceConfig:
        if self.mode == "depth" and self.depth == 0:
            raise ValueError("depth: mode depth needs it, 1 (serial) to K (pipelined)")
        return self

    @property
    def warnings(self) -> list[str]:
        """What `insecure` leaves open, one line an address."""
        lacking = [name for name, there in (("TLS", self.tls.cert), ("tokens", self.tokens_file)) if not there]
        if not lacking:
            return []
        return [
            f"{key} {host} can be reached from outside without {' or '.join(lacking)}" for key, host in _outside(self)
        ]

    @property
    def chosen_operators(self) -> str:
        """Overlays and weights other than the built-in ones, in a line."""
        chosen = {"policy": (self.operators, self.weights), "chat": (self.chat.operators, self.chat.weights)}
        told = []
        for who, (overlay, weights) in chosen.items():
            parts = [Path(overlay).name if overlay else "", "" if weights == "float" else f"{weights} weights"]
            if any(parts):
                told.append(f"{who} {', '.join(filter(None, parts))}")
        return "; ".join(told)

    @property
    def model_path(self) -> Path:
        """The model's directory; fetches a hub id. CheckpointError when there is none."""
        return resolve_model(self.model)

    @property
    def chat_path(self) -> Path | None:
        """The chat model's directory; None where chat is off or the embedded model is not installed."""
        if not self.chat.enabled:
            return None
        if self.chat.model == EMBEDDED_CHAT:
            return EMBEDDED_CHAT_MODEL if (EMBEDDED_CHAT_MODEL / "config.json").is_file() else None
        return resolve_model(self.chat.model)


def load_config(path: Path | None, overrides: Mapping[str, object]) -> ServiceConfig:
    """The configuration in a file, changed by `overrides`; ConfigError in one line.

    overrides: dotted keys (`grpc.port`); None leaves the file's value or the default.
    """
    values = _read(path) if path else {}
    for key, value in overrides.items():
        if value is not None:
            _set(values, key, value)
    try:
        config = ServiceConfig.model_validate(values)
    except ValidationError as error:
        details = [detail for detail in error.errors() if detail["type"] != "default_factory_not_called"]
        raise ConfigError("; ".join(_describe(detail) for detail in details[:3])) from None
    _check_addresses(config)
    return config


def schema_json() -> str:
    """The JSON schema of the file, for editors and people."""
    return json.dumps(ServiceConfig.model_json_schema(), indent=2)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"config: cannot read {path}: {error.strerror}") from error
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigError(f"config: {path} has more than {MAX_CONFIG_BYTES} bytes")
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"config: {path} line {error.lineno} column {error.colno}: {error.msg}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"config: {path} is not JSON in UTF-8") from error
    if not isinstance(values, dict):
        raise ConfigError(f"config: {path} must hold one JSON object")
    return values


def _set(values: dict[str, Any], key: str, value: object) -> None:
    *sections, last = key.split(".")
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{section}: must be an object")
        values = inner
    values[last] = value


def _describe(detail: ErrorDetails) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return f"{key}: unknown key{_suggestion(detail['loc'])}"
    message = detail["msg"].removeprefix("Input ")
    return f"{key}: {json.dumps(detail['input'], default=str)[:60]} {message}"


def _suggestion(loc: tuple[int | str, ...]) -> str:
    """`; did you mean grpc.port?` The nearest name of the same section, else of any section."""
    names = _all_keys(ServiceConfig, "")
    prefix = "".join(f"{part}." for part in loc[:-1])
    here = {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}
    near = difflib.get_close_matches(str(loc[-1]), list(here), n=1)
    if near:
        return f"; did you mean {here[near[0]]}?"
    leaves = {name.rpartition(".")[2]: name for name in names}
    near = difflib.get_close_matches(str(loc[-1]), list(leaves), n=1)
    if near:
        return f"; did you mean {leaves[near[0]]}?"
    return f"; known: {', '.join(name for name in here if '.' not in name)}"


def _all_keys(model: type[BaseModel], prefix: str) -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys += _all_keys(kind, f"{prefix}{name}.")
    return keys


def _check_addresses(config: ServiceConfig) -> None:
    for key, host in _outside(config):
        if not (config.tls.cert and config.tokens_file) and not config.insecure:
            raise ConfigError(
                f"{key}: {host} can be reached from outside: give tls.cert, tls.key and tokens_file, "
                "or use 127.0.0.1, or set insecure"
            )


def _outside(config: ServiceConfig) -> list[tuple[str, str]]:
    hosts = (("grpc.host", config.grpc.host), ("http.host", config.http.host))
    return [(key, host) for key, host in hosts if not is_loopback(host)]
