"""The configuration of the service: one JSON file, validated before anything starts.

Control and worker both read it; this module imports neither torch nor a web framework.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from edgeflow.config.chat import ChatConfig
from edgeflow.config.devices import PROFILE_NAMES
from edgeflow.config.sections import (
    ArtifactConfig,
    FrontendsConfig,
    GrpcConfig,
    HealthConfig,
    HttpConfig,
    LimitsConfig,
    Name,
    PolicyConfig,
    RealtimeConfig,
    RecordingConfig,
    Section,
    TimingConfig,
    TlsConfig,
    TraceConfig,
    TrajectoryConfig,
    is_loopback,
)
from edgeflow.model_paths import EMBEDDED_CHAT, EMBEDDED_CHAT_MODEL, EMBEDDED_MODEL, resolve_model
from edgeflow_client.errors import ConfigError
from edgeflow_client.types import MOST_TOLERANCE_BINS

BODY_BYTES_PER_TOKEN = 8  # of a long prompt; English prose has about four
MAX_CONFIG_BYTES = 1 << 20
MOST_SHOWN = 200  # characters of a key's path in a message


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
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA if available, else the CPU")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="dtype of the policy; auto: bfloat16 on CUDA, float32 on a CPU"
    )
    weights: Literal["float", "fp8"] = Field(
        "float",
        description="fp8: weights and activations of the language model in FP8 (CUDA from sm_89; emulated on a CPU)",
    )
    operators: str = Field(
        "", description="operator overlay from `edgeflow tune` for the policy; empty = built-in choices"
    )
    unnorm_key: str = Field("", description="action statistics of the checkpoint; empty = its only ones")
    cameras: dict[Name, Name] = Field(
        default_factory=dict,
        max_length=16,
        description="robot's camera by the policy's name for it, where the two differ: {policy name: robot name}",
    )
    state: dict[Name, Name | Annotated[list[Name], Field(min_length=1, max_length=4096)]] = Field(
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
        description="in mode speculative, how far a verified token may be from its draft; 0 = exact tokens",
    )
    max_passes: int = Field(
        0,
        ge=0,
        le=64,
        description="in mode speculative, the most passes of a frame, 1 to K; 0 = K, all tokens verified",
    )
    max_action_age_ms: int = Field(
        0, ge=0, le=60_000, description="for sessions that set none; 0 = validity plus the age forecast for the session"
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
        description=f"slow passes down to a device's published times: {', '.join(PROFILE_NAMES)}, or a JSON file",
    )
    threads: int = Field(0, ge=0, le=1024, description="CPU threads of the worker; 0 = one")
    decode_threads: int = Field(2, ge=1, le=64, description="threads that decode images in control")
    grpc: GrpcConfig = GrpcConfig()
    http: HttpConfig = HttpConfig()
    frontends: FrontendsConfig = FrontendsConfig()
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
    recording: RecordingConfig = RecordingConfig()
    trace: TraceConfig = TraceConfig()
    tls: TlsConfig = TlsConfig()
    tokens_file: str = Field("", description="file of access tokens (`edgeflow token new`); empty = no tokens required")
    insecure: bool = Field(False, description="permit addresses other than loopback without TLS and tokens")

    @model_validator(mode="after")
    def _settings_fit_the_mode(self) -> ServiceConfig:
        if self.mode == "depth" and self.depth == 0:
            raise ValueError("depth: required with mode depth: 1 (serial) to K (pipelined)")
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
        """Lines on everything that the configuration leaves open: addresses, networks without tokens, forced faults."""
        lacking = [name for name, there in (("TLS", self.tls.cert), ("tokens", self.tokens_file)) if not there]
        found = [
            f"{key} {host} is reachable from other machines without {' or '.join(lacking)}"
            for key, host in (_outside(self) if lacking else ())
        ]
        for name, front in self.frontends.dialects.items():
            if front.peers and self.tokens_file:
                found.append(f"frontends.{name}.peers: {', '.join(front.peers)} may move robots without a token")
        if self.frontends.faults:
            found.append("frontends.faults: robots get forced answers; for tests only")
        return found

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
    def torch_threads(self) -> int:
        """The CPU threads of torch in the worker."""
        return self.threads or 1

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

    overrides: by dotted key (`grpc.port`).
    """
    values = _read_config(path) if path else {}
    for key, value in overrides.items():
        _set(values, key, value)
    try:
        config = ServiceConfig.model_validate(values)
    except ValidationError as error:
        details = [detail for detail in error.errors() if detail["type"] != "default_factory_not_called"]
        raise ConfigError("; ".join(_describe(detail) for detail in details[:3])) from None
    for key, host in _outside(config):
        if not (config.tls.cert and config.tokens_file) and not config.insecure:
            raise ConfigError(
                f"{key}: {host} is reachable from other machines: configure tls.cert, tls.key and tokens_file, "
                "use 127.0.0.1, or set insecure"
            )
    return config


def schema_json() -> str:
    """The JSON schema of the configuration file."""
    return json.dumps(ServiceConfig.model_json_schema(), indent=2)


def keys_of(model: type[BaseModel], prefix: str = "") -> list[str]:
    """The dotted keys of a section, and of the sections in it."""
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys += keys_of(kind, f"{prefix}{name}.")
    return keys


def _read_config(path: Path) -> dict[str, Any]:
    """The values of a configuration file; ConfigError in one line."""
    try:
        with path.open("rb") as stream:  # a pipe is welcome: `--config <(jq … base.json)`
            text = stream.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"config: cannot read {path}: {error.strerror}") from error
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigError(f"config: {path} exceeds the limit of {MAX_CONFIG_BYTES} bytes")
    try:
        values = json.loads(text, object_pairs_hook=_object)
        repeated = next(_repeated(values, ""), None)
    except json.JSONDecodeError as error:
        raise ConfigError(f"config: {path} line {error.lineno} column {error.colno}: {error.msg}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"config: {path} is not valid JSON in UTF-8") from error
    if repeated is not None:
        raise ConfigError(f"config: {path} gives {repeated[-MOST_SHOWN:]} twice: remove one of them")
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
    if detail["type"] == "value_error":
        return ": ".join(filter(None, (key, str(detail["ctx"]["error"]))))
    message = detail["msg"].removeprefix("Input ")
    return f"{key}: {json.dumps(detail['input'], default=str)[:60]} {message}"


def _suggestion(loc: tuple[int | str, ...]) -> str:
    """`; did you mean grpc.port?`: the closest name in the same section, else in any section."""
    names = keys_of(ServiceConfig)
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


def _outside(config: ServiceConfig) -> list[tuple[str, str]]:
    hosts = (
        ("grpc.host", config.grpc.host),
        ("http.host", config.http.host),
        ("frontends.host", config.frontends.host),
    )
    return [(key, host) for key, host in hosts if not is_loopback(host)]


class _Repeating(dict[str, Any]):
    """An object with a key that is given more than once, of which JSON would take the last value."""

    key: str


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, before it is known where it stands."""
    values = dict(pairs)
    if len(values) == len(pairs):
        return values
    marked = _Repeating(values)
    marked.key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    return marked


def _repeated(value: Any, path: str) -> Iterator[str]:
    """Dotted paths of repeated keys, from the outside in."""
    if isinstance(value, _Repeating):
        yield f"{path}.{value.key}".removeprefix(".")
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _repeated(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _repeated(inner, f"{path}[{index}]")
