"""Checks of texts, names, state and the opening request of a session: everything that needs neither the policy nor the
state of the service. Every front end makes them, whatever its protocol.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

from edgeflow.config.sections import LimitsConfig
from edgeflow.contract import CHANNELS
from edgeflow.service.observation.requests import TRACE_HEADERS, OpenRequest, trace_context
from edgeflow_client.errors import InvalidArgument
from edgeflow_client.reasons import Reason
from edgeflow_client.types import MOST_TOLERANCE_BINS, CameraSpec, Execution, ImageFormat, Mode, StateSpec

MAX_NAME = 64
MAX_OPERATOR_TEXT = 200  # characters
_REJECTED_CATEGORIES = {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"}
MAX_NUMBER = 1e6  # a larger value means a broken sensor, whatever its unit
FIELD = "open.state"
MAX_PERIOD_MS = 10_000
MAX_AGE_MS = 60_000


def check_text(text: str, field: str, limits: LimitsConfig) -> str:
    """Validate an instruction: not empty, bounded, printable."""
    limit = limits.text_bytes
    if len(text) > limit or len(text.encode("utf-8", "surrogatepass")) > limit:
        raise text_too_long(field, limits)
    if not text.strip():
        raise InvalidArgument("is empty", field=field, reason=Reason.TEXT_EMPTY)
    if any(unicodedata.category(character) in _REJECTED_CATEGORIES for character in text):
        raise InvalidArgument(
            "contains control or unassigned characters", field=field, reason=Reason.TEXT_BAD_CHARACTER
        )
    return text


def check_operator_text(text: str, field: str, limits: LimitsConfig, *, empty: bool = False) -> str:
    """Validate a text of an operator: at most MAX_OPERATOR_TEXT characters, printable. empty: it may be."""
    if len(text) > MAX_OPERATOR_TEXT:
        raise InvalidArgument(f"has more than {MAX_OPERATOR_TEXT} characters", field=field, reason=Reason.TEXT_TOO_LONG)
    return text if empty and not text else check_text(text, field, limits)


def check_name(name: str, field: str) -> str:
    """Validate a name: not empty, bounded, printable."""
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidArgument(f"must have 1 to {MAX_NAME} printable characters", field=field, reason=Reason.BAD_NAME)
    return name


def text_too_long(field: str, limits: LimitsConfig) -> InvalidArgument:
    """The error for a text that exceeds the limit."""
    return InvalidArgument(
        f"exceeds the limit of {limits.text_bytes} bytes of UTF-8", field=field, reason=Reason.TEXT_TOO_LONG
    )


def check_vectors(vectors: Sequence[StateSpec], limits: LimitsConfig) -> None:
    """Validate vectors: bounded sizes, names that differ, bounded texts."""
    check_counts([vector.size for vector in vectors], limits)
    for index, vector in enumerate(vectors):
        check_name(vector.name, f"{FIELD}[{index}].name")
        for kind, texts in (("elements", vector.elements), ("units", vector.units)):
            for place, text in enumerate(texts):
                if text:  # else not stated
                    check_name(text, f"{FIELD}[{index}].{kind}[{place}]")
    if len({vector.name for vector in vectors}) != len(vectors):
        text = "two vectors have the same name; names must differ"
        raise InvalidArgument(text, field=FIELD, reason=Reason.STATE_NAME)


def check_numbers(values: Sequence[float], expected: int) -> tuple[float, ...]:
    """The state of a frame, with the number of values that its session declared, all of them plausible."""
    if len(values) != expected:
        raise InvalidArgument(
            f"has {len(values)} values; the session was opened with {expected} numbers",
            field="frame.proprio",
            reason=Reason.PROPRIO_COUNT,
        )
    for index, value in enumerate(values):
        if not abs(value) <= MAX_NUMBER:  # also rejects NaN
            raise InvalidArgument(
                f"must be finite and at most {MAX_NUMBER:g} in magnitude",
                field=f"frame.proprio[{index}]",
                reason=Reason.PROPRIO_NOT_FINITE if not math.isfinite(value) else Reason.PROPRIO_OUT_OF_RANGE,
            )
    return tuple(values)


def check_counts(sizes: Sequence[int], limits: LimitsConfig) -> None:
    """Validate the sizes of vectors: none is empty, and their sum is within the limit."""
    for index, size in enumerate(sizes):
        if size < 1:
            text = f"is {size}; a vector has at least one number"
            raise InvalidArgument(text, field=f"{FIELD}[{index}].size", reason=Reason.STATE_COUNT)
    if sum(sizes) > limits.proprio:
        text = f"has {sum(sizes)} numbers; the limit is {limits.proprio}"
        raise InvalidArgument(text, field=FIELD, reason=Reason.STATE_COUNT)


def check_request(opened: OpenRequest, limits: LimitsConfig) -> None:
    """Validate an opening request that another process has already checked by the same limits."""
    if trace_context(zip(TRACE_HEADERS, opened.trace, strict=False)) != opened.trace:
        raise InvalidArgument("is not a trace context", field="open.trace")
    if opened.policy_numbers:
        raise InvalidArgument("is matched by the process that plans the session", field="open")
    check_camera_names([camera.name for camera in opened.cameras], limits)
    for index, camera in enumerate(opened.cameras):
        check_camera_size(camera, f"open.cameras[{index}]", limits)
    check_vectors(opened.state, limits)
    check_text(opened.instruction, "open.instruction", limits)
    check_depth(opened.mode, opened.depth)
    check_speculation(opened.mode, opened.tolerance_bins, opened.max_passes)
    check_period(opened.control_period_ns // 1_000_000, limits)
    if opened.max_action_age_ns is not None:
        check_age(opened.max_action_age_ns // 1_000_000)
    check_execution(opened.execution, opened.chunks)
    if opened.unnorm_key:
        check_name(opened.unnorm_key, "open.unnorm_key")


def check_camera_names(names: Sequence[str], limits: LimitsConfig) -> None:
    """Validate the names of cameras: bounded in number, and all different."""
    if not 1 <= len(names) <= limits.cameras:
        text = f"has {len(names)} cameras; a session takes 1 to {limits.cameras}"
        raise InvalidArgument(text, field="open.cameras", reason=Reason.CAMERA_COUNT)
    for index, name in enumerate(names):
        check_name(name, f"open.cameras[{index}].name")
    if len(set(names)) != len(names):
        raise InvalidArgument(
            "two cameras have the same name; names must differ", field="open.cameras", reason=Reason.CAMERA_NAME
        )


def check_camera_size(camera: CameraSpec, field: str, limits: LimitsConfig) -> None:
    """Validate the size of a camera's images."""
    pixels, size, text = camera.width * camera.height, f"{camera.width}x{camera.height}", ""
    if min(camera.width, camera.height) < 1 or pixels > limits.image_pixels:
        text = f"{size} is outside the limits of 1 to {limits.image_pixels} pixels"
    elif max(camera.width, camera.height) > limits.image_side:
        text = f"{size} has a side longer than {limits.image_side} pixels"
    elif camera.format is ImageFormat.RGB8 and pixels * CHANNELS > limits.image_bytes:
        text = f"{size} RGB is {pixels * CHANNELS} bytes; the limit is {limits.image_bytes}: send JPEG, or smaller ones"
    if text:
        raise InvalidArgument(text, field=field, reason=Reason.CAMERA_SIZE)


def check_period(period_ms: int, limits: LimitsConfig) -> int:
    """Validate a control period; returns it."""
    shortest_ms = math.floor(1000 / limits.rate_hz)
    if not shortest_ms <= period_ms <= MAX_PERIOD_MS:
        raise InvalidArgument(
            f"must be {shortest_ms} to {MAX_PERIOD_MS} ms, got {period_ms}",
            field="open.control_period_ms",
            reason=Reason.PERIOD_OUT_OF_RANGE,
        )
    return period_ms


def check_depth(mode: Mode | None, depth: int) -> None:
    """Validate that a depth comes with mode depth."""
    if depth and mode is not Mode.DEPTH:
        raise InvalidArgument("may only be set with mode depth", field="open.depth", reason=Reason.DEPTH_WITHOUT_MODE)


def check_speculation(mode: Mode | None, tolerance_bins: int, max_passes: int) -> None:
    """Check everything that does not depend on the model; admission checks that max_passes is at most K."""
    for name, value in (("tolerance_bins", tolerance_bins), ("max_passes", max_passes)):
        if value and mode is not Mode.SPECULATIVE:
            raise InvalidArgument(
                "may only be set with mode speculative", field=f"open.{name}", reason=Reason.SPECULATION_WITHOUT_MODE
            )
    if not 0 <= tolerance_bins <= MOST_TOLERANCE_BINS:
        raise InvalidArgument(
            f"must be 0 to {MOST_TOLERANCE_BINS}, got {tolerance_bins}",
            field="open.tolerance_bins",
            reason=Reason.TOLERANCE_OUT_OF_RANGE,
        )
    if max_passes < 0:
        raise InvalidArgument(f"must be 0 to K, got {max_passes}", field="open.max_passes")


def check_execution(execution: Execution | None, chunks: bool) -> Execution | None:
    """Validate that an execution is asked for only by clients that execute chunks; returns it."""
    if execution and not chunks:
        raise InvalidArgument(
            "may only be set by clients that execute chunks: set open.chunks",
            field="open.execution",
            reason=Reason.EXECUTION_WITHOUT_CHUNKS,
        )
    return execution


def check_age(age_ms: int) -> int | None:
    """Validate an age limit; returns it in nanoseconds, None = none."""
    if not 0 <= age_ms <= MAX_AGE_MS:
        raise InvalidArgument(
            f"must be at most {MAX_AGE_MS} ms, got {age_ms}",
            field="open.max_action_age_ms",
            reason=Reason.AGE_OUT_OF_RANGE,
        )
    return age_ms * 1_000_000 if age_ms else None
