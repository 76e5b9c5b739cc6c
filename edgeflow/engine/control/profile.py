"""Device profiles: passes held to the pace of a named device.

The embedded policy takes milliseconds per pass, far less than a 7B model on the intended device; a profile
makes its passes last as long as theirs, so that rate and age can be seen at their true size.

Published totals, ActionFlow Table 1 (OpenVLA-7B): the baseline's time per frame, T_prefill + 6 T_decode, and
the pipelined time per frame, T_packed. The split is an assumption: T_prefill is taken equal to T_packed (a packed
pass adds six rows to a prefill of about 280), hence T_decode = (baseline - T_packed) / 6. Rows beyond a full packed
pass, which the table does not have, cost what the rows of the prefill do: T_packed / 280 each.

For flow policies the totals of a chunk are published (config/devices.json). The split is an assumption, too:
PREFIX_PERCENT of a chunk's time for the prefix, the rest in equal parts for its denoising steps, however many a policy
takes. A policy of one pass takes all of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgeflow.config.devices import PROFILE_NAMES, PUBLISHED_DEVICES
from edgeflow.contract import PassTimes, StageProgram
from edgeflow.scheduler.plan import Pass
from edgeflow_client.clock import Clock
from edgeflow_client.errors import ConfigError
from edgeflow_client.files import read_regular

MOST_BYTES = 1 << 20
LONGEST_PASS_NS = 60_000_000_000
PREFIX_PERCENT = 60
PUBLISHED_ROWS = 280  # of the prefill of the model in the table, with a short instruction


@dataclass(frozen=True, slots=True, kw_only=True)
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
        if self.steps_ns and program.passes == 1:
            whole_ns = self.prefill_ns + self.steps_ns
            return replace(self, prefill_ns=whole_ns, packed_ns=whole_ns, steps_ns=0).times_of(program)
        if self.steps_ns:
            each_ns = self.steps_ns // (program.passes - 1)
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


def _published(name: str, times: Mapping[str, Any]) -> DeviceProfile:
    if "chunk_ms" in times:
        percent_ns = round(times["chunk_ms"] * 1e4)
        prefill_ns = percent_ns * PREFIX_PERCENT
        steps_ns = percent_ns * (100 - PREFIX_PERCENT)
        return DeviceProfile(name=name, prefill_ns=prefill_ns, decode_ns=0, packed_ns=prefill_ns, steps_ns=steps_ns)
    packed_ns = round(times["packed_ms"] * 1e6)
    decode_ns = round((times["serial_ms"] - times["packed_ms"]) / 6 * 1e6)
    return DeviceProfile(name=name, prefill_ns=packed_ns, decode_ns=decode_ns, packed_ns=packed_ns)


PROFILES = {name: _published(name, times) for name, times in PUBLISHED_DEVICES.items()}


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
        if unknown := sorted(set(values) - {"name", "prefill_ms", "decode_ms", "packed_ms", "prefill_rows"}):
            raise ConfigError(f"profile: {name}: unknown key {unknown[0][:32]!r}")
        rows = values.get("prefill_rows", PUBLISHED_ROWS)
        if type(rows) is not int or rows < 1:
            raise ConfigError(f"profile: {name} has prefill_rows {rows!r}; it is an integer of at least 1")
        if not all(0 < each <= LONGEST_PASS_NS for each in (prefill_ns, decode_ns, packed_ns)):
            raise ConfigError(f"profile: {name}: every time must be above 0 and at most {LONGEST_PASS_NS // 10**6} ms")
        return DeviceProfile(
            name=str(values["name"]),
            prefill_ns=prefill_ns,
            decode_ns=decode_ns,
            packed_ns=packed_ns,
            prefill_rows=rows,
        )
    except OSError as error:
        raise ConfigError(
            f"profile: cannot read {name!r}: {error.strerror}; use {', '.join(PROFILE_NAMES)} or a JSON file"
        ) from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
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
