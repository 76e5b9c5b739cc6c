"""Power mode, clocks, temperatures and throttling of a Jetson, from the files of Jetson Linux.

The layout is that of JetPack 6 on Orin and JetPack 7 on Thor, by NVIDIA's Jetson Linux Developer Guide ("Platform Power
and Performance": nvpmodel, devfreq, thermal zones, throttle alerts, over-current counters), and by pull requests 825
and 886 of jetson_stats for Thor's devfreq nodes. A file that is missing or cannot be read leaves its fact out: in a
container, `/var/lib/nvpmodel` and `/etc/nvpmodel.conf` must be mounted for the power mode. Reading takes milliseconds,
since the kernel asks the board's power controller for temperatures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeflow_client.files import read_regular

MOST_BYTES = 1 << 20
GPU = "gpu"
EMC = "emc"
DEVFREQ = {"17000000.gpu": GPU, "17000000.ga10b": GPU, "gpu-gpc-0": GPU, "bwmgr": EMC}
"""Names in /sys/class/devfreq: the GPU of Orin (JetPack 6 and 5) and Thor, and Thor's memory."""
EMC_FOLDER = "sys/kernel/debug/bpmp/debug/clk/emc"  # Orin's memory; only root reads it
ALERT = "-alert"  # cooling devices that throttle are named so; a fan is not
KHZ = 1_000
OFF = -100_000  # millidegrees: some kernels report -256 degrees for a part that is off


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardClock:
    """The clock of a part of the board, in Hz; None for what cannot be read."""

    now_hz: int | None
    most_hz: int | None
    """The most that power mode and throttling permit now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardFacts:
    """The state of a Jetson, by its files."""

    model: str
    """The model in the device tree; "Jetson" where a container hides it."""
    power_mode: str | None
    """The mode's id, and its name where /etc/nvpmodel.conf is there: `0 MAXN`; None where it is unknown."""
    clocks: Mapping[str, BoardClock]
    """By part: `gpu`, `cpu` (the fastest core) and `emc`, the memory."""
    temperatures: Mapping[str, float]
    """Degrees Celsius by thermal zone. The zone of a part that is off is missing."""
    throttling: Mapping[str, bool]
    """By cooling device, such as `gpu-throttle-alert`: True while it throttles."""
    throttled: Mapping[str, int]
    """Times that the hardware throttled since the board started, by event: `oc1` (low voltage), `oc2` and `oc3`
    (average and instantaneous current).
    """

    @property
    def power(self) -> dict[str, str]:
        """The power mode and the largest clocks, by which measured times are comparable; unknown ones are left out."""
        found = {} if self.power_mode is None else {"power_mode": self.power_mode}
        for part, clock in self.clocks.items():
            if clock.most_hz is not None:
                found[f"{part}_mhz"] = str(clock.most_hz // 1_000_000)
        return found


def read_board(root: Path = Path("/")) -> BoardFacts | None:
    """The facts of this machine; None where it is not a Jetson. root: the root of the files."""
    model = _text(root / "proc/device-tree/model") or _text(root / "sys/devices/soc0/machine") or ""
    if "Jetson" not in model and not (_text(root / "sys/devices/soc0/family") or "").startswith("Tegra"):
        return None
    alerts = {kind: state > 0 for kind, state in _typed(root, "cooling_device*", "cur_state") if kind.endswith(ALERT)}
    return BoardFacts(
        model=model or "Jetson",
        power_mode=_power_mode(root),
        clocks=_clocks(root),
        temperatures={zone: heat / 1000 for zone, heat in _typed(root, "thermal_zone*", "temp") if heat > OFF},
        throttling=alerts,
        throttled=_events(root),
    )


def power_difference(measured: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The differences between two `BoardFacts.power`, in words; "" where both agree in what both know."""
    both = [name for name in measured if name in now and measured[name] != now[name]]
    return ", ".join(f"{name} {measured[name]}, now {now[name]}" for name in both)


def _power_mode(root: Path) -> str | None:
    status = re.search(r"pmode:0*(\d+)", _text(root / "var/lib/nvpmodel/status") or "")
    if status is None:
        return None
    modes = re.findall(
        r"^\s*<\s*POWER_MODEL\s+ID=0*(\d+)\s+NAME=(\S+?)\s*>", _text(root / "etc/nvpmodel.conf") or "", re.M
    )
    return " ".join([status[1], *(name for number, name in modes if number == status[1])][:2])


def _clocks(root: Path) -> dict[str, BoardClock]:
    found = {}
    for name, part in DEVFREQ.items():
        folder = root / "sys/class/devfreq" / name
        now, most = _number(folder / "cur_freq"), _number(folder / "max_freq")
        if now is not None or most is not None:
            found[part] = BoardClock(now_hz=now, most_hz=most)
    emc = _number(root / EMC_FOLDER / "rate")
    if EMC not in found and emc is not None:
        found[EMC] = BoardClock(now_hz=emc, most_hz=_number(root / EMC_FOLDER / "max_rate"))
    policies = sorted(root.glob("sys/devices/system/cpu/cpufreq/policy*"))
    if policies:
        now, most = (
            max((hz for policy in policies if (hz := _number(policy / name)) is not None), default=None)
            for name in ("scaling_cur_freq", "scaling_max_freq")
        )
        found["cpu"] = BoardClock(now_hz=now and now * KHZ, most_hz=most and most * KHZ)
    return found


def _typed(root: Path, pattern: str, name: str) -> Iterator[tuple[str, int]]:
    """The type and a number of each thermal zone or cooling device that can be read."""
    for folder in sorted(root.glob(f"sys/class/thermal/{pattern}")):
        kind, number = _text(folder / "type"), _number(folder / name)
        if kind and number is not None:
            yield kind, number


def _events(root: Path) -> dict[str, int]:
    found = {}
    for path in sorted(root.glob("sys/class/hwmon/hwmon*/oc*_event_cnt")):
        count = _number(path)
        if count is not None:
            found[path.name.removesuffix("_event_cnt")] = count
    return found


def _text(path: Path) -> str | None:
    try:
        return read_regular(path, MOST_BYTES).decode(errors="replace").strip("\0\n ")
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and re.fullmatch(r"-?[0-9]{1,18}", text) else None
