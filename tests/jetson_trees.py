"""Files of an Orin and a Thor, as `edgeflow.jetson` reads them.

They are made from documentation and public reports, and were not recorded on a board: the Jetson Linux Developer Guide
(power modes, thermal zones, throttle alerts, over-current counters) and jetson_stats (issue 885, pull requests 825 and
886: Thor's devfreq nodes).
"""

from __future__ import annotations

import os
from pathlib import Path

ORIN = {
    "proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0",
    "var/lib/nvpmodel/status": "pmode:0000",
    "etc/nvpmodel.conf": (
        "# < POWER_MODEL ID=0 NAME=COMMENT >\n< POWER_MODEL ID=0 NAME=MAXN >\nCPU_ONLINE CORE_0 1\n"
        "< POWER_MODEL ID=2 NAME=MODE_30W >\nGPU MAX_FREQ 612000000\n< PM_CONFIG DEFAULT=2 >\n"
    ),
    "sys/class/devfreq/17000000.gpu/cur_freq": "1300500000\n",
    "sys/class/devfreq/17000000.gpu/max_freq": "1300500000\n",
    "sys/class/devfreq/15340000.vic/cur_freq": "115200000\n",
    "sys/kernel/debug/bpmp/debug/clk/emc/rate": "3199000000\n",
    "sys/kernel/debug/bpmp/debug/clk/emc/max_rate": "3199000000\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "729600\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq": "2201600\n",
    "sys/devices/system/cpu/cpufreq/policy4/scaling_cur_freq": "2201600\n",
    "sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq": "2201600\n",
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    "sys/class/thermal/thermal_zone0/temp": "51687\n",
    "sys/class/thermal/thermal_zone1/type": "gpu-thermal\n",
    "sys/class/thermal/thermal_zone1/temp": "48500\n",
    "sys/class/thermal/thermal_zone2/type": "cv0-thermal\n",
    "sys/class/thermal/thermal_zone2/temp": "-256000\n",
    "sys/class/thermal/thermal_zone8/type": "tj-thermal\n",
    "sys/class/thermal/thermal_zone8/temp": "51687\n",
    "sys/class/thermal/cooling_device0/type": "pwm-fan\n",
    "sys/class/thermal/cooling_device0/cur_state": "3\n",
    "sys/class/thermal/cooling_device3/type": "gpu-throttle-alert\n",
    "sys/class/thermal/cooling_device3/cur_state": "0\n",
    "sys/class/hwmon/hwmon3/name": "soctherm_oc\n",
    "sys/class/hwmon/hwmon3/oc1_event_cnt": "0\n",
    "sys/class/hwmon/hwmon3/oc2_event_cnt": "0\n",
    "sys/class/hwmon/hwmon3/oc3_event_cnt": "27\n",
}
"""JetPack 6, in the power mode MAXN."""

THOR = {
    "proc/device-tree/model": "NVIDIA Jetson AGX Thor Developer Kit\0",
    "var/lib/nvpmodel/status": "pmode:0001\n",
    "etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=1 NAME=120W >\n",
    "sys/class/devfreq/gpu-gpc-0/cur_freq": "1050000000\n",
    "sys/class/devfreq/gpu-gpc-0/max_freq": "1575000000\n",
    "sys/class/devfreq/gpu-nvd-0/cur_freq": "1692000000\n",
    "sys/class/devfreq/bwmgr/cur_freq": "4266000000\n",
    "sys/class/devfreq/bwmgr/max_freq": "4266000000\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "2601000\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq": "2601000\n",
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    "sys/class/thermal/thermal_zone0/temp": "59218\n",
    "sys/class/thermal/thermal_zone1/type": "tj-thermal\n",
    "sys/class/thermal/thermal_zone1/temp": "60406\n",
    "sys/class/thermal/thermal_zone2/type": "soc012-thermal\n",
    "sys/class/thermal/thermal_zone2/temp": "58468\n",
    "sys/class/thermal/thermal_zone3/type": "gpu-thermal\n",
    "sys/class/thermal/cooling_device9/type": "gpu-throttle-alert\n",
    "sys/class/thermal/cooling_device9/cur_state": "1\n",
    "sys/class/hwmon/hwmon5/oc3_event_cnt": "0\n",
}
"""JetPack 7, in the power mode 120W, throttled; the GPU's zone cannot be read."""


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """Write the files below root, and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def write_thor(root: Path) -> Path:
    """The Thor, with a zone that a reader would wait for."""
    write_tree(root, THOR)
    os.mkfifo(root / "sys/class/thermal/thermal_zone3/temp")
    return root
