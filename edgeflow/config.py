"""The configuration of the service: one JSON file, validated before anything starts.

Control and worker both read it; this module imports neither torch nor a web framework.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from edgeflow.config_base import Section
from edgeflow.config_file import read_config
from edgeflow.config_sections import ArtifactConfig, ChatConfig, HealthConfig, RealtimeConfig, TrajectoryConfig
from edgeflow.model_paths import EMBEDDED_CHAT, EMBEDDED_CHAT_MODEL, EMBEDDED_MODEL, resolve_model
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import MOST_TOLERANCE_BINS

BODY_BYTES_PER_TOKEN = 8  # of a long prompt; English prose has about four
_Name = Annotated[str, Field(min_length=1, max_length=64)]


class GrpcConfig(Section):
    """Address of the gRPC control plane; port 0 = any free port."""

    host: str = "127.0.0.1"
    port: int = Field(50051, ge=0, le=65535)


class HttpConfig(Section):
    """Address of the HTTP server; port 0 = any free port."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    names: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(
        default_factory=list,
        max_length=64,
        description="host names and addresses, besides those of loopback, that requests and web pages may use; "
        "empty = none on a loopback address, any elsewhere",
    )


class TlsConfig(Section):
    """PEM files of TLS, which is off without a certificate. Changed files are reloaded."""

    cert: str = Field("", description="certificate chain of the service")
    key: str = Field("", description="private key of the certificate; must not be readable by others")
    client_ca: str = Field(
        "", description="CA that signs client certificates; if set, clients must present one (mutual TLS)"
    )

    @model_validator(mode="after")
    def _together(self) -> TlsConfig:
        if bool(self.cert) != bool(self.key):
            raise ValueError("cert and key must be given together")
        if self.client_ca and not self.cert:
            raise ValueError("client_ca needs cert and key")
        return self


class LimitsConfig(Section):
    """Limits on what clients send; anything beyond is refused with a typed error."""

    message_bytes: int = Field(4 << 20, ge=1 << 10, le=64 << 20, description="bytes of a gRPC message")
    http_body_bytes: int = Field(8 << 20, ge=1 << 10, le=64 << 20, description="bytes of an HTTP request body")
    cameras: int = Field(4, ge=1, le=16, description="cameras per session")
    image_bytes: int = Field(1 << 20, ge=1 << 10, le=64 << 20, description="bytes of an encoded or raw image")
    image_pixels: int = Field(4_000_000, ge=1, le=16_000_000, description="pixels (width times height) of an image")
    image_side: int = Field(
        8_192, ge=1, le=16_384, description="pixels of the longer side; policies may pad to a square"
    )
    proprio: int = Field(256, ge=0, le=4096, description="proprioceptive values per frame")
    text_bytes: int = Field(4096, ge=1, le=65536, description="bytes of an instruction in UTF-8")
    rate_hz: float = Field(
        60.0, gt=0, le=1000, description="frames per second of a session, whatever period it declares"
    )
    rate_factor: float = Field(
        2.0, ge=1, le=100, description="frames per second of a session, as a multiple of its declared rate"
    )
    rejected_frames: int = Field(
        100, ge=1, le=100_000, description="refused frames within 10 s before a stream is ended"
    )
    streams: int = Field(16, ge=1, le=1024, description="concurrent calls per gRPC connection")
    session_age_s: float = Field(86400.0, gt=0, description="maximum age of a session")
    sessions_per_principal: int = Field(2, ge=1, le=64, description="open sessions per principal (owner of a token)")
    http_connections: int = Field(256, ge=1, le=65536, description="open HTTP connections")
    http_connections_per_address: int = Field(
        16, ge=1, le=65536, description="open HTTP connections per client address"
    )
    gateway_memory_mb: int = Field(512, ge=128, le=65536, description="memory of the HTTP gateway process, in MiB")
    chat_memory_mb: int = Field(1024, ge=256, le=65536, description="memory of the chat front process, in MiB")


class TimingConfig(Section):
    """Time limits."""

    action_ttl_ms: int = Field(250, ge=10, le=500, description="how long a robot may execute an action")
    silent_hold_ms: int = Field(
        300, ge=10, le=60_000, description="silence of a robot before HOLD; at least 5 control periods"
    )
    silent_free_ms: int = Field(1_000, ge=10, description="silence before a session's KV slots are freed for others")
    silent_end_ms: int = Field(30_000, ge=100, description="silence before the stream is ended")
    slow_reader_ms: int = Field(
        2_000, ge=100, description="time a robot may leave an answer unread before the stream is ended"
    )
    act_timeout_ms: int = Field(10_000, ge=100, description="time limit of a single action (Act, POST /v1/act)")
    worker_progress_ms: int = Field(2_000, ge=100, description="silence of the worker before it is replaced")
    worker_start_s: float = Field(900.0, gt=0, description="time limit of a worker's start: loading and warm-up")
    crash_limit: int = Field(3, ge=0, le=1000, description="worker losses tolerated within crash_window_s")
    crash_window_s: float = Field(
        300.0, gt=0, description="window in which more than crash_limit losses end the service"
    )
    handshake_ms: int = Field(2_000, ge=100, le=60_000, description="time limit of the TLS and HTTP/2 handshakes")
    http_headers_ms: int = Field(5_000, ge=100, le=60_000, description="time limit of a request's headers")
    http_body_ms: int = Field(
        10_000,
        ge=100,
        le=600_000,
        description="time limit of a request's body, which must also arrive at 1 KiB per second",
    )
    drain_ms: int = Field(3_000, ge=0, description="time for work in flight when the service stops")


class PolicyConfig(BaseModel):
    """The policy's family and its own settings, which the family checks."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    family: str = Field("", max_length=64, description="family of the policy; empty = as the checkpoint says")

    @property
    def settings(self) -> dict[str, Any]:
        """The keys besides `family`."""
        return dict(self.model_extra or {})


class ServiceConfig(Section):
    """Configuration of the service; every key has a default."""

    model: str = Field(
        EMBEDDED_MODEL, min_length=1, description="checkpoint directory, hub id, or an embedded policy: demo, demo-flow"
    )
    alias: str = Field(
        default_factory=lambda data: Path(data.get("model", EMBEDDED_MODEL)).name,
        min_length=1,
        max_length=128,
        description="model name for clients; default: the last part of model",
    )
    policy: PolicyConfig = PolicyConfig()
    trajectory: TrajectoryConfig = TrajectoryConfig()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    weights: Literal["float", "fp8"] = Field(
        "float",
        description="fp8: weights and activations of the language model in FP8 (CUDA from sm_89; emulated on a CPU)",
    )
    operators: str = Field(
        "", description="operator overlay from `edgeflow tune` for the policy; empty = built-in choices"
    )
    unnorm_key: str = Field("", description="action statistics of the checkpoint; empty = its only ones")
    cameras: dict[_Name, _Name] = Field(
        default_factory=dict,
        max_length=16,
        description="robot's camera by the policy's name for it, where the two differ: {policy name: robot name}",
    )
    state: dict[_Name, _Name | Annotated[list[_Name], Field(min_length=1, max_length=4096)]] = Field(
        default_factory=dict,
        max_length=64,
        description="robot's state vector by the policy's name for it, or a list of vectors that make it up in order",
    )
    center_crop: bool = Field(False, description="crop images to 0.9 of their area, as some fine-tunes expect")
    preprocess: Literal["auto", "host", "device"] = Field(
        "auto", description="where frames are resized and normalised, with identical results; auto: device on CUDA"
    )
    mode: Literal["serial", "pipelined", "depth", "speculative", "auto"] = Field(
        "auto",
        description="for sessions that do not choose one; auto: the highest rate within the session's age limit, and "
        "without one speculative with exact tokens, or serial where no tokens are drafted",
    )
    depth: int = Field(0, ge=0, le=64, description="ticks a frame takes in mode depth, 1 (serial) to K (pipelined)")
    tolerance_bins: int = Field(
        0,
        ge=0,
        le=MOST_TOLERANCE_BINS,
        description="in mode speculative, how far a token may be from its draft and still be settled; 0 = exact tokens",
    )
    max_passes: int = Field(
        0, ge=0, le=64, description="in mode speculative, the most passes of a frame, 1 to K; 0 = K, all tokens settled"
    )
    max_action_age_ms: int = Field(
        0, ge=0, le=60_000, description="for sessions that set none; 0 = validity plus the age foretold for the session"
    )
    admission_headroom_percent: int = Field(
        20, ge=0, le=90, description="percent of the device kept free when robots share it"
    )
    graphs: Literal["auto", "on", "off"] = Field(
        "auto", description="replay passes as CUDA graphs captured at start; auto: on CUDA in half precision"
    )
    shift: Literal["rotate", "copy"] = Field(
        "rotate", description="how a session's KV slots advance: rotate an index, or copy KV"
    )
    max_sessions: int | None = Field(
        None,
        ge=1,
        le=64,
        description="sessions whose KV memory is reserved at start; unset = as many as fit into free memory, 1 to 8",
    )
    row_budget: int | None = Field(
        None,
        ge=1,
        le=65536,
        description="most rows in a packed pass; unset = 1024, or what two robots need whose answers are denoised",
    )
    drain_after_ms: int = Field(
        2, ge=0, le=10_000, description="how long to wait for a frame before a decode-only pass"
    )
    max_prompt_tokens: int = Field(128, ge=8, le=4096, description="most tokens of an instruction's prompt")
    profile: str = Field(
        "none",
        min_length=1,
        description="slow passes down to a device's published times: none, orin, rtx5090, or a JSON file of pass times",
    )
    threads: int = Field(0, ge=0, le=1024, description="CPU threads of the worker; 0 = one")
    decode_threads: int = Field(2, ge=1, le=64, description="threads that decode images in control")
    grpc: GrpcConfig = GrpcConfig()
    http: HttpConfig = HttpConfig()
    health: HealthConfig = HealthConfig()
    limits: LimitsConfig = LimitsConfig()
    timing: TimingConfig = TimingConfig()
    standby: bool = Field(
        True,
        description="keep a worker in reserve, with its libraries loaded, and a spare gateway and chat front; 270 MB",
    )
    realtime: RealtimeConfig = RealtimeConfig()
    chat: ChatConfig = ChatConfig()
    artifact: ArtifactConfig = ArtifactConfig()
    tls: TlsConfig = TlsConfig()
    tokens_file: str = Field("", description="file of access tokens (`edgeflow token new`); empty = no tokens required")
    insecure: bool = Field(False, description="permit addresses other than loopback without TLS and tokens")

    @model_validator(mode="after")
    def _depth_is_named(self) -> ServiceConfig:
        if self.mode == "depth" and self.depth == 0:
            raise ValueError("depth: required with mode depth: 1 (serial) to K (pipelined)")
        return self

    @model_validator(mode="after")
    def _drafts_are_verified(self) -> ServiceConfig:
        for key in ("tolerance_bins", "max_passes"):
            if self.mode != "speculative" and getattr(self, key):
                raise ValueError(f"{key}: may only be set with mode speculative")
        return self

    @model_validator(mode="after")
    def _bodies_hold_long_prompts(self) -> ServiceConfig:
        length, most = self.chat.long.most_tokens, self.limits.http_body_bytes
        if self.chat.long.gate and most < length * BODY_BYTES_PER_TOKEN:
            raise ValueError(
                f"limits.http_body_bytes is {most}, but a prompt of chat.long.length = {length} tokens may take "
                f"{length * BODY_BYTES_PER_TOKEN}"
            )
        return self

    @property
    def warnings(self) -> list[str]:
        """Addresses that `insecure` leaves open, one line each."""
        lacking = [name for name, there in (("TLS", self.tls.cert), ("tokens", self.tokens_file)) if not there]
        if not lacking:
            return []
        return [
            f"{key} {host} is reachable from other machines without {' or '.join(lacking)}"
            for key, host in _outside(self)
        ]

    @property
    def chosen_operators(self) -> str:
        """Overlays and weights other than the built-in ones, in one line."""
        chosen = {"policy": (self.operators, self.weights), "chat": (self.chat.operators, self.chat.weights)}
        chosen_parts = []
        for who, (overlay, weights) in chosen.items():
            parts = [Path(overlay).name if overlay else "", "" if weights == "float" else f"{weights} weights"]
            if any(parts):
                chosen_parts.append(f"{who} {', '.join(filter(None, parts))}")
        return "; ".join(chosen_parts)

    @property
    def model_path(self) -> Path:
        """The model's directory, fetched if the model is a hub id; CheckpointError if it is missing."""
        return resolve_model(self.model)

    @property
    def chat_path(self) -> Path | None:
        """The chat model's directory; None if chat is off or the embedded model is not installed."""
        if not self.chat.enabled:
            return None
        if self.chat.model == EMBEDDED_CHAT:
            return EMBEDDED_CHAT_MODEL if (EMBEDDED_CHAT_MODEL / "config.json").is_file() else None
        return resolve_model(self.chat.model, chat=True)


def load_config(path: Path | None, overrides: Mapping[str, object]) -> ServiceConfig:
    """Load a configuration file and apply `overrides`; ConfigError in one line.

    overrides: by dotted key (`grpc.port`); None keeps the file's value or the default.
    """
    values = read_config(path) if path else {}
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
    """The JSON schema of the configuration file."""
    return json.dumps(ServiceConfig.model_json_schema(), indent=2)


def is_loopback(host: str) -> bool:
    """True if `host` is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
    if detail["type"] == "value_error":
        return ": ".join(filter(None, (key, str(detail["ctx"]["error"]))))
    message = detail["msg"].removeprefix("Input ")
    return f"{key}: {json.dumps(detail['input'], default=str)[:60]} {message}"


def _suggestion(loc: tuple[int | str, ...]) -> str:
    """`; did you mean grpc.port?`: the closest name in the same section, else in any section."""
    names = _all_keys(ServiceConfig, "")
    prefix = "".join(f"{part}." for part in loc[:-1])
    here = {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}
    turned = [name for name in here if sorted(name) == sorted(str(loc[-1]))]  # difflib finds mode nearer to modle
    near = turned or difflib.get_close_matches(str(loc[-1]), list(here), n=1)
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
                f"{key}: {host} is reachable from other machines: configure tls.cert, tls.key and tokens_file, "
                "use 127.0.0.1, or set insecure"
            )


def _outside(config: ServiceConfig) -> list[tuple[str, str]]:
    hosts = (("grpc.host", config.grpc.host), ("http.host", config.http.host))
    return [(key, host) for key, host in hosts if not is_loopback(host)]
