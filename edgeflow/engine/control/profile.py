"""Device profiles: passes held to the pace of a named device.

The embedded policy takes milliseconds per pass, far less than a 7B model on the intended device; a profile
makes its passes last as long as theirs, so that rate and age can be seen at their true size.

Published totals, ActionFlow Table 1 (OpenVLA-7B): the baseline's time per frame, T_prefill + 6 T_decode, and
the pipelined time per frame, T_packed. The split is an assumption: T_prefill is taken equal to T_packed (a packed
pass adds six rows to a prefill of about 280), hence T_decode = (baseline - T_packed) / 6. Rows beyond a full packed
pass, which the table does not have, cost what the rows of the prefill do: T_packed / 280 each.

For flow policies, published totals of a chunk: π0.5 in INT8 on an AGX Orin and in NVFP4 on a Thor (FlashRT), SmolVLA on
an AGX Orin (vla.cpp). The split is an assumption, too: PREFIX_PERCENT of a chunk's time for the prefix, the rest in
equal parts for its denoising steps, however many a policy takes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgeflow.contract import PassTimes, StageProgram
from edgeflow.scheduler.plan import Pass
from edgeflow_client.clock import Clock
from edgeflow_client.errors import ConfigError
from edgeflow_client.files import read_regular

MOST_BYTES = 1 << 20
PREFIX_PERCENT = 60
PUBLISHED_ROWS = 280  # of the prefill of the model in the table, with a short instruction


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """Pass times of a device in nanoseconds: a prefill by itself, a decode-only pass, a full packed pass."""

    name: str
    prefill_ns: int
    decode_ns: int
    packed_ns: int
    prefill_rows: int = PUBLISHED_ROWS
    """Rows of a prefill in the measured model."""
    steps_ns: int = 0
    """Time of all passes of an answer after its prefill, where only that is known; 0 = `decode_ns` each."""

    def times_of(self, program: StageProgram) -> PassTimes:
        """Pass times of answers of a program there.

        A denoising step by itself takes a decode pass. Beside a prefill or another step, each of its rows costs what
        rows beyond a full packed pass do.
        """
        if self.steps_ns:
            each_ns = self.steps_ns // max(program.passes - 1, 1)
            return replace(self, decode_ns=each_ns, steps_ns=0).times_of(program)
        times, step_rows = self.times(program.passes), program.step_rows
        if not step_rows:
            return times
        step_ns, steps = step_rows * times.row_ns, program.passes - 1
        return replace(
            times,
            packed_ns=self.prefill_ns + steps * step_ns,
            decodes_ns=self.decode_ns + (steps - 1) * step_ns,
            row_ns=step_ns,
        )

    def times(self, stages: int) -> PassTimes:
        """Pass times of K tokens there: prefills of several sessions add up, and decode rows are free, but for those
        beyond a full packed pass.
        """
        return PassTimes(
            stages=stages,
            prefill_ns=self.prefill_ns,
            two_prefills_ns=2 * self.prefill_ns,
            packed_ns=self.packed_ns,
            decode_ns=self.decode_ns,
            decodes_ns=self.decode_ns,
            row_ns=self.packed_ns // self.prefill_rows,
        )


def _published(name: str, baseline_s: float, packed_s: float) -> DeviceProfile:
    packed_ns = round(packed_s * 1e9)
    return DeviceProfile(name, packed_ns, round((baseline_s - packed_s) / 6 * 1e9), packed_ns)


def _published_chunk(name: str, chunk_s: float) -> DeviceProfile:
    prefill_ns = round(chunk_s * 1e7) * PREFIX_PERCENT
    return DeviceProfile(name, prefill_ns, 0, prefill_ns, steps_ns=round(chunk_s * 1e7) * (100 - PREFIX_PERCENT))


PROFILES = {
    profile.name: profile
    for profile in (
        _published("orin", 0.8030, 0.3131),
        _published("rtx5090", 0.1312, 0.0514),
        _published_chunk("orin-pi05", 0.124),
        _published_chunk("orin-smolvla", 0.388),
        _published_chunk("thor-pi05", 0.0273),
    )
}


def load_profile(name: str) -> DeviceProfile | None:
    """`none`, one of PROFILES, or a JSON file {name, prefill_ms, decode_ms, packed_ms} of measured times.

    The file may also have prefill_rows, of the model that was measured, instead of PUBLISHED_ROWS.
    """
    if name == "none":
        return None
    if name in PROFILES:
        return PROFILES[name]
    try:
        values = json.loads(read_regular(Path(name), MOST_BYTES))
        prefill_ns, decode_ns, packed_ns = (
            round(float(values[key]) * 1e6) for key in ("prefill_ms", "decode_ms", "packed_ms")
        )
        rows = values.get("prefill_rows", PUBLISHED_ROWS)
        if type(rows) is not int or rows < 1:
            raise ConfigError(f"profile: {name} has prefill_rows {rows!r}; it is an integer of at least 1")
        return DeviceProfile(str(values["name"]), prefill_ns, decode_ns, packed_ns, rows)
    except OSError as error:
        raise ConfigError(
            f"profile: cannot read {name!r}: {error.strerror}; use none, {', '.join(PROFILES)} or a JSON file"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"profile: {name} needs name, prefill_ms, decode_ms and packed_ms, and may have prefill_rows"
        ) from error


class Pacer:
    """Makes a pass last as long as it would on another device, by waiting for the rest of that time."""

    def __init__(self, times: PassTimes, clock: Clock, wait: Callable[[float], None] = time.sleep) -> None:
        self._times = times
        self._clock = clock
        self._wait = wait

    def hold(self, planned: Pass[Any], started_ns: int) -> None:
        """Wait until the pass has lasted its time since `started_ns`."""
        lasts_ns = self._times.pass_ns(*planned.shape)
        missing_ns = started_ns + lasts_ns - self._clock.now_ns()
        if missing_ns > 0:
            self._wait(missing_ns / 1e9)
