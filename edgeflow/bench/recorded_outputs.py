"""Section: `edgeflow verify` on this device, over every recorded checkpoint of a folder (--bundles)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import TimeoutExpired

from edgeflow.bench.cli_process import last_line, require_packages, run_command
from edgeflow.bench.order import LEFT_OUT, Found
from edgeflow.bench.setting import OffError, Setting, SkipError

AT_ONCE = 4  # each loads torch for seconds
AGREES, DIFFERS = 0, 1  # exit codes of `edgeflow verify`; others: it cannot check this one


def verify(setting: Setting) -> Found:
    """A row per bundle; OffError where one differs, or where none could be checked."""
    if setting.bundles is None:
        raise SkipError("no folder of recorded checkpoints is given: --bundles")
    require_packages()
    bundles = sorted(path.parent for path in setting.bundles.glob("*/cases.json"))
    if not bundles:
        raise SkipError(f"no recorded checkpoint in {setting.bundles}")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = list(pool.map(lambda bundle: _row(setting, bundle), bundles))
    found: Found = {"bundles": [row for row in rows if row["result"] != LEFT_OUT]}
    if late := [row["bundle"] for row in rows if row["result"] == LEFT_OUT]:
        found[LEFT_OUT] = late
    if off := [row["bundle"] for row in rows if row["result"] == "differs"]:
        raise OffError(f"{', '.join(off)}: differs from the recorded outputs", found)
    if all(row["result"] == "not checked" for row in rows):
        raise OffError("no bundle could be checked", found)
    return found


def _row(setting: Setting, bundle: Path) -> Found:
    row: Found = {"bundle": bundle.name}
    device = ["--device", "cuda"] if setting.cuda else []  # by default the CPU
    try:
        done = run_command(["verify", str(bundle), *device, "--json"], setting.left_s)
    except TimeoutExpired:
        return row | {"result": LEFT_OUT}
    if done.returncode not in (AGREES, DIFFERS) or not done.stdout.startswith("["):
        return row | {"result": "not checked", "why": last_line(done.stderr)}
    comparisons = json.loads(done.stdout)
    off = [each for each in comparisons if not each["ok"]]
    row |= {"result": "differs" if off else "agrees", "comparisons": len(comparisons), "off": len(off)}
    return row | ({"why": f"{off[0]['mode']}, {off[0]['case']}: {off[0]['quantity']}"} if off else {})
