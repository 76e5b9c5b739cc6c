from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ImageFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IMAGE_FORMAT_UNSPECIFIED: _ClassVar[ImageFormat]
    IMAGE_FORMAT_JPEG: _ClassVar[ImageFormat]
    IMAGE_FORMAT_RGB8: _ClassVar[ImageFormat]

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_SERIAL: _ClassVar[Mode]
    MODE_PIPELINED: _ClassVar[Mode]
    MODE_DEPTH: _ClassVar[Mode]
    MODE_AUTO: _ClassVar[Mode]
    MODE_SPECULATIVE: _ClassVar[Mode]

class Execution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXECUTION_UNSPECIFIED: _ClassVar[Execution]
    EXECUTION_AUTO: _ClassVar[Execution]
    EXECUTION_CONTINUE: _ClassVar[Execution]
    EXECUTION_FRESH: _ClassVar[Execution]
    EXECUTION_REST: _ClassVar[Execution]
    EXECUTION_SLOW: _ClassVar[Execution]

class Command(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMMAND_UNSPECIFIED: _ClassVar[Command]
    COMMAND_ACT: _ClassVar[Command]
    COMMAND_HOLD: _ClassVar[Command]
    COMMAND_STOP: _ClassVar[Command]

class Disposition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DISPOSITION_UNSPECIFIED: _ClassVar[Disposition]
    DISPOSITION_ACTED: _ClassVar[Disposition]
    DISPOSITION_SUPERSEDED: _ClassVar[Disposition]
    DISPOSITION_REJECTED: _ClassVar[Disposition]
    DISPOSITION_DROPPED: _ClassVar[Disposition]
IMAGE_FORMAT_UNSPECIFIED: ImageFormat
IMAGE_FORMAT_JPEG: ImageFormat
IMAGE_FORMAT_RGB8: ImageFormat
MODE_UNSPECIFIED: Mode
MODE_SERIAL: Mode
MODE_PIPELINED: Mode
MODE_DEPTH: Mode
MODE_AUTO: Mode
MODE_SPECULATIVE: Mode
EXECUTION_UNSPECIFIED: Execution
EXECUTION_AUTO: Execution
EXECUTION_CONTINUE: Execution
EXECUTION_FRESH: Execution
EXECUTION_REST: Execution
EXECUTION_SLOW: Execution
COMMAND_UNSPECIFIED: Command
COMMAND_ACT: Command
COMMAND_HOLD: Command
COMMAND_STOP: Command
DISPOSITION_UNSPECIFIED: Disposition
DISPOSITION_ACTED: Disposition
DISPOSITION_SUPERSEDED: Disposition
DISPOSITION_REJECTED: Disposition
DISPOSITION_DROPPED: Disposition

class ClientMessage(_message.Message):
    __slots__ = ("open", "frame", "reset", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: Open
    frame: Frame
    reset: Reset
    close: Close
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., frame: _Optional[_Union[Frame, _Mapping]] = ..., reset: _Optional[_Union[Reset, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("opened", "action", "frame_status", "notice", "receipt")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    FRAME_STATUS_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    action: Action
    frame_status: FrameStatus
    notice: Notice
    receipt: Receipt
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., action: _Optional[_Union[Action, _Mapping]] = ..., frame_status: _Optional[_Union[FrameStatus, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ...) -> None: ...

class Camera(_message.Message):
    __slots__ = ("name", "width", "height", "format", "resize")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    RESIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    width: int
    height: int
    format: ImageFormat
    resize: bool
    def __init__(self, name: _Optional[str] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., format: _Optional[_Union[ImageFormat, str]] = ..., resize: bool = ...) -> None: ...

class StateVector(_message.Message):
    __slots__ = ("name", "size", "elements", "units")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    elements: _containers.RepeatedScalarFieldContainer[str]
    units: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., elements: _Optional[_Iterable[str]] = ..., units: _Optional[_Iterable[str]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("model", "cameras", "proprio_names", "instruction", "control_period_ms", "max_action_age_ms", "mode", "unnorm_key", "depth", "tolerance_bins", "max_passes", "state", "chunks", "execution")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    PROPRIO_NAMES_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    CONTROL_PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_ACTION_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    UNNORM_KEY_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_BINS_FIELD_NUMBER: _ClassVar[int]
    MAX_PASSES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    model: str
    cameras: _containers.RepeatedCompositeFieldContainer[Camera]
    proprio_names: _containers.RepeatedScalarFieldContainer[str]
    instruction: str
    control_period_ms: int
    max_action_age_ms: int
    mode: Mode
    unnorm_key: str
    depth: int
    tolerance_bins: int
    max_passes: int
    state: _containers.RepeatedCompositeFieldContainer[StateVector]
    chunks: bool
    execution: Execution
    def __init__(self, model: _Optional[str] = ..., cameras: _Optional[_Iterable[_Union[Camera, _Mapping]]] = ..., proprio_names: _Optional[_Iterable[str]] = ..., instruction: _Optional[str] = ..., control_period_ms: _Optional[int] = ..., max_action_age_ms: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., unnorm_key: _Optional[str] = ..., depth: _Optional[int] = ..., tolerance_bins: _Optional[int] = ..., max_passes: _Optional[int] = ..., state: _Optional[_Iterable[_Union[StateVector, _Mapping]]] = ..., chunks: bool = ..., execution: _Optional[_Union[Execution, str]] = ...) -> None: ...

class Image(_message.Message):
    __slots__ = ("camera", "data")
    CAMERA_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    camera: str
    data: bytes
    def __init__(self, camera: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("seq", "stamp_ns", "images", "proprio", "instruction", "crc32c", "playing", "arrived", "resting")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    STAMP_NS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    PROPRIO_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    PLAYING_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    RESTING_FIELD_NUMBER: _ClassVar[int]
    seq: int
    stamp_ns: int
    images: _containers.RepeatedCompositeFieldContainer[Image]
    proprio: _containers.RepeatedScalarFieldContainer[float]
    instruction: str
    crc32c: int
    playing: Playing
    arrived: Arrived
    resting: bool
    def __init__(self, seq: _Optional[int] = ..., stamp_ns: _Optional[int] = ..., images: _Optional[_Iterable[_Union[Image, _Mapping]]] = ..., proprio: _Optional[_Iterable[float]] = ..., instruction: _Optional[str] = ..., crc32c: _Optional[int] = ..., playing: _Optional[_Union[Playing, _Mapping]] = ..., arrived: _Optional[_Union[Arrived, _Mapping]] = ..., resting: bool = ...) -> None: ...

class Playing(_message.Message):
    __slots__ = ("seq", "step", "start_ns")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    step: int
    start_ns: int
    def __init__(self, seq: _Optional[int] = ..., step: _Optional[int] = ..., start_ns: _Optional[int] = ...) -> None: ...

class Arrived(_message.Message):
    __slots__ = ("seq", "age_ns")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    AGE_NS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    age_ns: int
    def __init__(self, seq: _Optional[int] = ..., age_ns: _Optional[int] = ...) -> None: ...

class Reset(_message.Message):
    __slots__ = ("instruction",)
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    instruction: str
    def __init__(self, instruction: _Optional[str] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ActionDimension(_message.Message):
    __slots__ = ("name", "unit", "low", "high", "relative")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    unit: str
    low: float
    high: float
    relative: bool
    def __init__(self, name: _Optional[str] = ..., unit: _Optional[str] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., relative: bool = ...) -> None: ...

class ActionSchema(_message.Message):
    __slots__ = ("dimensions", "frame", "rotation", "control_rate_hz", "horizon", "step_ms", "whole_way")
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    ROTATION_FIELD_NUMBER: _ClassVar[int]
    CONTROL_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_WAY_FIELD_NUMBER: _ClassVar[int]
    dimensions: _containers.RepeatedCompositeFieldContainer[ActionDimension]
    frame: str
    rotation: str
    control_rate_hz: float
    horizon: int
    step_ms: float
    whole_way: bool
    def __init__(self, dimensions: _Optional[_Iterable[_Union[ActionDimension, _Mapping]]] = ..., frame: _Optional[str] = ..., rotation: _Optional[str] = ..., control_rate_hz: _Optional[float] = ..., horizon: _Optional[int] = ..., step_ms: _Optional[float] = ..., whole_way: bool = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session", "epoch", "schema", "action_tokens", "mode", "model", "valid_for_ms", "depth", "predicted_fps", "predicted_age_ms", "tolerance_bins", "max_passes", "execution", "unheard_m", "receipts", "cameras", "ignored")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    ACTION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VALID_FOR_MS_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FPS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_BINS_FIELD_NUMBER: _ClassVar[int]
    MAX_PASSES_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    UNHEARD_M_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    CAMERAS_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    schema: ActionSchema
    action_tokens: int
    mode: Mode
    model: str
    valid_for_ms: int
    depth: int
    predicted_fps: float
    predicted_age_ms: float
    tolerance_bins: int
    max_passes: int
    execution: Execution
    unheard_m: float
    receipts: bool
    cameras: _containers.RepeatedCompositeFieldContainer[Camera]
    ignored: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., schema: _Optional[_Union[ActionSchema, _Mapping]] = ..., action_tokens: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., model: _Optional[str] = ..., valid_for_ms: _Optional[int] = ..., depth: _Optional[int] = ..., predicted_fps: _Optional[float] = ..., predicted_age_ms: _Optional[float] = ..., tolerance_bins: _Optional[int] = ..., max_passes: _Optional[int] = ..., execution: _Optional[_Union[Execution, str]] = ..., unheard_m: _Optional[float] = ..., receipts: bool = ..., cameras: _Optional[_Iterable[_Union[Camera, _Mapping]]] = ..., ignored: _Optional[_Iterable[str]] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("decode_ns", "queue_ns", "inference_ns", "passes", "server_ns")
    DECODE_NS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_NS_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    SERVER_NS_FIELD_NUMBER: _ClassVar[int]
    decode_ns: int
    queue_ns: int
    inference_ns: int
    passes: int
    server_ns: int
    def __init__(self, decode_ns: _Optional[int] = ..., queue_ns: _Optional[int] = ..., inference_ns: _Optional[int] = ..., passes: _Optional[int] = ..., server_ns: _Optional[int] = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("epoch", "seq", "stamp_ns", "command", "reason", "valid_for_ms", "values", "token_ids", "timings", "max_age_ms", "settled", "tolerance_bins", "max_passes", "horizon", "step_ms", "continues", "conditioned_steps", "limited", "candidates", "chosen", "execution", "rate", "rows", "from_arrival")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    STAMP_NS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VALID_FOR_MS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_BINS_FIELD_NUMBER: _ClassVar[int]
    MAX_PASSES_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    CONDITIONED_STEPS_FIELD_NUMBER: _ClassVar[int]
    LIMITED_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FROM_ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    stamp_ns: int
    command: Command
    reason: str
    valid_for_ms: int
    values: _containers.RepeatedScalarFieldContainer[float]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    max_age_ms: int
    settled: int
    tolerance_bins: int
    max_passes: int
    horizon: int
    step_ms: float
    continues: int
    conditioned_steps: int
    limited: _containers.RepeatedCompositeFieldContainer[Limited]
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    chosen: int
    execution: Execution
    rate: float
    rows: int
    from_arrival: bool
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., stamp_ns: _Optional[int] = ..., command: _Optional[_Union[Command, str]] = ..., reason: _Optional[str] = ..., valid_for_ms: _Optional[int] = ..., values: _Optional[_Iterable[float]] = ..., token_ids: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., max_age_ms: _Optional[int] = ..., settled: _Optional[int] = ..., tolerance_bins: _Optional[int] = ..., max_passes: _Optional[int] = ..., horizon: _Optional[int] = ..., step_ms: _Optional[float] = ..., continues: _Optional[int] = ..., conditioned_steps: _Optional[int] = ..., limited: _Optional[_Iterable[_Union[Limited, _Mapping]]] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., chosen: _Optional[int] = ..., execution: _Optional[_Union[Execution, str]] = ..., rate: _Optional[float] = ..., rows: _Optional[int] = ..., from_arrival: bool = ...) -> None: ...

class Limited(_message.Message):
    __slots__ = ("dimension", "limit", "beyond", "changed")
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEYOND_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    dimension: str
    limit: str
    beyond: float
    changed: float
    def __init__(self, dimension: _Optional[str] = ..., limit: _Optional[str] = ..., beyond: _Optional[float] = ..., changed: _Optional[float] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("score", "distance", "roughness", "beyond")
    SCORE_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    ROUGHNESS_FIELD_NUMBER: _ClassVar[int]
    BEYOND_FIELD_NUMBER: _ClassVar[int]
    score: float
    distance: float
    roughness: float
    beyond: float
    def __init__(self, score: _Optional[float] = ..., distance: _Optional[float] = ..., roughness: _Optional[float] = ..., beyond: _Optional[float] = ...) -> None: ...

class FrameStatus(_message.Message):
    __slots__ = ("seq", "last_seq", "disposition", "code", "reason", "text")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQ_FIELD_NUMBER: _ClassVar[int]
    DISPOSITION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    seq: int
    last_seq: int
    disposition: Disposition
    code: str
    reason: str
    text: str
    def __init__(self, seq: _Optional[int] = ..., last_seq: _Optional[int] = ..., disposition: _Optional[_Union[Disposition, str]] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("seq",)
    SEQ_FIELD_NUMBER: _ClassVar[int]
    seq: int
    def __init__(self, seq: _Optional[int] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("kind", "epoch", "code", "text", "deadline_ms")
    KIND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    epoch: int
    code: str
    text: str
    deadline_ms: int
    def __init__(self, kind: _Optional[str] = ..., epoch: _Optional[int] = ..., code: _Optional[str] = ..., text: _Optional[str] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class ActRequest(_message.Message):
    __slots__ = ("open", "frame")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    open: Open
    frame: Frame
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., frame: _Optional[_Union[Frame, _Mapping]] = ...) -> None: ...

class ActResponse(_message.Message):
    __slots__ = ("action", "schema", "ignored")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    action: Action
    schema: ActionSchema
    ignored: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, action: _Optional[_Union[Action, _Mapping]] = ..., schema: _Optional[_Union[ActionSchema, _Mapping]] = ..., ignored: _Optional[_Iterable[str]] = ...) -> None: ...
