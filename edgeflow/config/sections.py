"""Sections of the configuration, except that of chat."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Name = Annotated[str, Field(min_length=1, max_length=64)]


class Section(BaseModel):
    """A section: unknown keys, values of another type and numbers that are not finite are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @property
    def changed(self) -> dict[str, Any]:
        """The settings other than the defaults."""
        fields = type(self).model_fields
        return {name: value for name, value in self if value != fields[name].default}


class GrpcConfig(Section):
    """Address of the gRPC control plane; port 0 = any free port."""

    host: str = Field(
        "127.0.0.1", description="address to listen on; other than loopback needs tls and tokens_file, or insecure"
    )
    port: int = Field(50051, ge=0, le=65535, description="port to listen on; 0 = any free port")


class HttpConfig(Section):
    """Address of the HTTP server; port 0 = any free port."""

    host: str = Field(
        "127.0.0.1", description="address to listen on; other than loopback needs tls and tokens_file, or insecure"
    )
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 = any free port")
    names: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(
        default_factory=list,
        max_length=64,
        description="host names and addresses, besides those of loopback, that requests and web pages may use; "
        "empty = none on a loopback address, any elsewhere",
    )


class HealthConfig(Section):
    """Address of the health listener: plain HTTP without TLS or token, answered by its own thread."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8001, ge=0, le=65535, description="port to listen on; 0 = any free port")


WIDEST_PEERS = {4: 8, 6: 16}  # bits of the network, by version of IP


class FrontendConfig(Section):
    """A protocol of robots' own clients: its names, its rate, and who needs no token."""

    cameras: dict[Name, Name] = Field(
        default_factory=dict,
        max_length=16,
        description="client's camera by the policy's name for it, where the two differ; takes precedence over cameras",
    )
    state: dict[Name, Name | Annotated[list[Name], Field(min_length=1, max_length=4096)]] = Field(
        default_factory=dict,
        max_length=64,
        description="client's state vector by the policy's name for it, or several; takes precedence over state",
    )
    instruction: str = Field("", max_length=4096, description="for clients that send none")
    rows: int = Field(
        0, ge=0, le=4096, description="rows of a chunk that a client executes before it asks again; 0 = half of them"
    )
    period_ms: int = Field(
        0, ge=0, le=10_000, description="time between a client's requests; 0 = that of its rows at the control rate"
    )
    peers: list[str] = Field(
        default_factory=list,
        max_length=64,
        description="networks (192.0.2.0/24) whose clients need no token, for clients that cannot send one",
    )

    @field_validator("peers")
    @classmethod
    def _networks(cls, peers: list[str]) -> list[str]:
        for each in peers:
            try:
                network = ipaddress.ip_network(each)
            except ValueError as error:
                raise ValueError(f"{each!r} is not a network such as 192.0.2.0/24: {error}") from None
            if network.prefixlen < (widest := WIDEST_PEERS[network.version]):
                raise ValueError(f"{each} is too wide, /{widest} at most: name the network of the robots")
        return peers


class OpenpiConfig(FrontendConfig):
    """openpi's websocket clients, and RoboArena's and others that speak alike."""

    metadata: dict[str, Any] = Field(
        default_factory=dict,
        max_length=64,
        description="values that a client gets when it connects, besides those of the policy, such as reset_pose",
    )

    @field_validator("metadata")
    @classmethod
    def _can_be_sent(cls, metadata: dict[str, Any]) -> dict[str, Any]:
        import msgpack  # which a machine that serves no clients may lack

        try:
            msgpack.packb(metadata)
        except (TypeError, ValueError, OverflowError):
            raise ValueError("must be texts, numbers of at most 64 bits, lists and maps of these") from None
        return metadata


class ForcedFault(Section):
    """A fault for tests of clients: how requests of a session are answered instead of by the policy."""

    answer: Literal["hold", "stop", "reject", "delay"] = Field(description="what a request gets")
    session: int = Field(0, ge=0, description="which session since the start, from 1; 0 = each")
    first: int = Field(1, ge=1, description="its first request that is answered so")
    last: int = Field(0, ge=0, description="its last one; 0 = no last one")
    delay_ms: int = Field(0, ge=0, le=600_000, description="with delay: how much later the request is handled")


class FrontendsConfig(Section):
    """Robots' own clients, with their own process and port (HTTP and websocket)."""

    host: str = Field(
        "127.0.0.1", description="address to listen on; other than loopback needs tls and tokens_file, or insecure"
    )
    port: int = Field(8002, ge=0, le=65535, description="port to listen on; 0 = any free port")
    openpi: OpenpiConfig = OpenpiConfig()
    openvla: FrontendConfig = FrontendConfig()
    faults: list[ForcedFault] = Field(
        default_factory=list, max_length=64, description="forced on sessions, to see what a client does; for tests only"
    )

    @property
    def dialects(self) -> dict[str, FrontendConfig]:
        """The protocols by name."""
        return {name: value for name, value in self if isinstance(value, FrontendConfig)}


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
    """Limits on what clients send; anything beyond is rejected with a typed error."""

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
        100, ge=1, le=100_000, description="rejected frames within 10 s before a stream is ended"
    )
    streams: int = Field(16, ge=1, le=1024, description="concurrent calls per gRPC connection")
    session_age_s: float = Field(86400.0, gt=0, description="maximum age of a session")
    sessions_per_principal: int = Field(2, ge=1, le=64, description="open sessions per principal (owner of a token)")
    http_connections: int = Field(256, ge=1, le=65536, description="open HTTP connections")
    http_connections_per_address: int = Field(
        16, ge=1, le=65536, description="open HTTP connections per client address"
    )
    robots_memory_mb: int = Field(
        1024, ge=256, le=65536, description="memory of the process that serves robots' own clients, in MiB"
    )
    gateway_memory_mb: int = Field(512, ge=128, le=65536, description="memory of the HTTP gateway process, in MiB")
    chat_memory_mb: int = Field(1024, ge=256, le=65536, description="memory of the chat front process, in MiB")


class TimingConfig(Section):
    """Time limits."""

    action_ttl_ms: int = Field(
        250, ge=10, le=500, description="shortest validity: how long a robot may execute an action at least"
    )
    longest_ttl_ms: int = Field(
        500,
        ge=500,
        le=10_000,
        description="longest validity of actions whose execution the robot chose; with auto it follows the answers",
    )
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


class RealtimeConfig(Section):
    """CPUs, priorities and locked memory. What the system does not permit becomes a warning at start.

    Priorities: 0 ordinary, -20 to -1 a nice level, 1 to 99 SCHED_FIFO.
    """

    front_cpus: list[int] = Field(default_factory=list, description="CPUs of control; empty = any")
    worker_cpus: list[int] = Field(default_factory=list, description="CPUs of the worker process; empty = any")
    front_priority: int = Field(0, ge=-20, le=99, description="0 ordinary, below 0 nice, above 0 SCHED_FIFO")
    worker_priority: int = Field(0, ge=-20, le=99, description="as front_priority")
    lock_memory: bool = Field(False, description="lock control's pages in memory")


class PolicyConfig(BaseModel):
    """The policy's family and its own settings, which the family checks."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    family: str = Field("", max_length=64, description="family of the policy; empty = as the checkpoint says")

    @property
    def settings(self) -> dict[str, Any]:
        """The keys besides `family`."""
        return dict(self.model_extra or {})


class ArtifactConfig(Section):
    """How models run that `edgeflow export` wrote as graphs; other models do not read this section."""

    providers: list[Name] = Field(
        default=["CPUExecutionProvider"],
        min_length=1,
        max_length=8,
        description="execution providers of ONNX Runtime, the preferred one first; `edgeflow doctor` lists them",
    )


class CandidateWeights(Section):
    """Weights of what the chunks that answer one frame are scored by; the lowest sum is sent."""

    distance: float = Field(
        1.0, ge=0, le=1e6, description="of the mean squared distance to the chunk in execution, normalised"
    )
    roughness: float = Field(1.0, ge=0, le=1e6, description="of the mean squared jerk per step, normalised")
    limits: float = Field(1.0, ge=0, le=1e6, description="of the mean excess over the limits, as a share of each")


class DimensionLimits(Section):
    """Limits of one dimension of the actions, in its unit and seconds."""

    velocity: float | None = Field(None, gt=0, description="units per second; unset = no limit, as for the others")
    acceleration: float | None = Field(None, gt=0, description="units per second squared")
    jerk: float | None = Field(None, gt=0, description="units per second cubed")
    low: float | None = Field(None, description="lowest position; of a displacement, that of the pose that it leads to")
    high: float | None = Field(None, description="highest position")
    state: str = Field(
        "",
        max_length=128,
        description="number of the policy's state that is the dimension's position, as observation.state[3]",
    )
    free_start: bool = Field(
        False,
        description="of a position without state: the first command of a motion may be anywhere within low and high",
    )

    @model_validator(mode="after")
    def _box_has_room(self) -> DimensionLimits:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low: {self.low:g} is not below high, {self.high:g}")
        return self


class TrajectoryConfig(Section):
    """The chunks that are sent: the best of a frame's candidates, within limits on its motion."""

    weights: CandidateWeights = CandidateWeights()
    limits: dict[Name, DimensionLimits] = Field(
        default_factory=dict, max_length=256, description="limits on the motion, by dimension of the actions"
    )


class RecordingConfig(Section):
    """Recordings of everything that robots send and receive; off unless a directory or a port is given."""

    directory: str = Field("", description="directory of the recordings; empty = none are written")
    cameras: Literal["none", "thumbnails", "all"] = Field(
        "all", description="images in recordings: none, small copies, or all as they came"
    )
    live_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="port of 127.0.0.1 where Foxglove can watch robots; 0 = any free port, unset = none",
    )
    budget_gib: float = Field(
        20.0, ge=0.1, le=1_000_000, description="size of the directory, beyond which the oldest recordings are deleted"
    )
    file_mib: int = Field(1024, ge=16, le=1 << 20, description="size of a file, after which another one begins")
    file_minutes: float = Field(10.0, ge=0.1, le=1440, description="time after which another file begins")

    @property
    def on(self) -> bool:
        """True if anything is recorded or can be watched."""
        return bool(self.directory) or self.live_port is not None


class TraceConfig(Section):
    """Traces by OpenTelemetry: where each frame spent its time; off unless an endpoint is given."""

    endpoint: str = Field(
        "",
        max_length=2048,
        description="address of a receiver of OTLP over HTTP, as http://127.0.0.1:4318; empty = no traces",
    )
    sample: float = Field(
        1.0, ge=0, le=1, description="share of frames that are traced, of robots that send no trace context"
    )

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, endpoint: str) -> str:
        try:
            parts = urlsplit(endpoint)
            named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            named = False
        if endpoint and (not named or not endpoint.isprintable() or " " in endpoint or parts.query or parts.fragment):
            raise ValueError("must be an address such as http://127.0.0.1:4318")
        if endpoint and parts.username is not None:
            raise ValueError("must not hold a password: set OTEL_EXPORTER_OTLP_HEADERS in the environment")
        return endpoint

    @property
    def on(self) -> bool:
        """True if frames are traced."""
        return bool(self.endpoint)


def is_loopback(host: str) -> bool:
    """True if `host` is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
