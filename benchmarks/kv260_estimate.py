"""FPGA resources of a MACRO_MAC and of a whole channel, as yosys estimates them, four times and beside the paper's.

An estimate of synthesis for UltraScale+: nothing is placed or routed, and no frequency follows from it.
The paper's figures are Table II of On-Device Qwen2.5, from its authors' own tools.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

from benchmarks.command import keep, machine_facts, options

DESIGN = Path(__file__).parents[1] / "deploy" / "kv260"
KEPT = ("processing_element", "column_sum", "macro_mac", "unpack", "activations", "sums")
"""Modules that are synthesized once, each by itself, and counted per instance."""
COLUMNS = ("LUT", "logic cells", "FF", "DSP", "BRAM", "shift registers", "LUT RAM")
"""LUT: cells LUT1 to LUT6. Logic cells: yosys's estimate, in which LUTs of one and two inputs share other sites."""
PAPER = {"DSP": 384, "FF": 110_405, "LUT": 96_553}
DEVICE = {"DSP": 1_248, "FF": 234_240, "LUT": 117_120}
"""The K26 module's FPGA (AMD data sheet DS987)."""
CHANNELS = 4


def estimate(top: str) -> dict[str, Counter[str]]:
    """Resources (COLUMNS) of `top` and of the modules in it, each with all that it holds."""
    kept = " ".join(KEPT)
    script = (
        f"read_verilog -sv -I{DESIGN}/arithmetic {DESIGN}/arithmetic/*.sv {DESIGN}/*.sv; hierarchy -check -top {top}; "
        f"setattr -mod -set keep_hierarchy 1 {kept}; "
        f"synth_xilinx -family xcup -flatten -noiopad -nowidelut -top {top}; tee -o /dev/stderr stat -tech xilinx"
    )
    done = subprocess.run(["yosys", "-q", "-p", script], capture_output=True, text=True, check=True)
    modules = _modules(done.stderr)
    return {name: _total(name, modules) for name in modules}


def yosys_version() -> str:
    """The version of the yosys that is found first."""
    return subprocess.run(["yosys", "-V"], capture_output=True, text=True, check=True).stdout.strip()


def _modules(statistics: str) -> dict[str, Counter[str]]:
    """Counts of cells of each module in yosys's statistics."""
    modules: dict[str, Counter[str]] = {}
    for part in re.split(r"^=== ", statistics, flags=re.MULTILINE)[1:]:
        name = part.split(" ===", 1)[0]
        if name != "design hierarchy":
            cells = re.findall(r"^ {5}(\S+) +(\d+)$", part, re.MULTILINE)
            modules[name] = Counter({cell: int(count) for cell, count in cells})
            modules[name]["logic cells"] = sum(map(int, re.findall(r"number of LCs: +(\d+)", part)))
    return modules


def _total(name: str, modules: dict[str, Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter(dict.fromkeys(COLUMNS, 0))
    for cell, count in modules[name].items():
        if cell in modules:
            total.update({column: count * each for column, each in _total(cell, modules).items()})
        else:
            total[_column(cell)] += count
    return Counter({column: total[column] for column in COLUMNS})


def _column(cell: str) -> str:
    """The resource that a cell takes."""
    kinds = {"LUT": r"LUT\d", "FF": "FD", "DSP": "DSP", "BRAM": "RAMB", "shift registers": "SRL", "LUT RAM": r"RAM\d"}
    return next((column for column, pattern in kinds.items() if re.match(pattern, cell)), cell)


def main() -> None:
    """Estimate, print and keep the figures."""
    arguments = options(__doc__).parse_args()
    found = estimate("channel")
    rows = {"MACRO_MAC": found["macro_mac"], "channel": found["channel"]}
    rows |= {f"{CHANNELS} x {name}": Counter({k: CHANNELS * v for k, v in each.items()}) for name, each in rows.items()}
    print(f"{'':16}" + "".join(f"{column:>17}" for column in COLUMNS))
    for name, each in {**rows, "paper, Table II": PAPER, "K26": DEVICE}.items():
        print(f"{name:16}" + "".join(f"{each[column]:17,}" if column in each else f"{'':17}" for column in COLUMNS))
    keep(
        arguments.json,
        {**machine_facts(), "yosys": yosys_version(), "figures": rows, "modules": found, "paper": PAPER, "k26": DEVICE},
    )


if __name__ == "__main__":
    main()
