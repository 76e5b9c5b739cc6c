"""The GPU suite: what a machine is, whether the kernels and the engine are right on it, and how fast they are.

One command, no network, nothing installed but torch, triton, numpy, safetensors, tokenizers and pillow. Sections run
one after the other within the time given; each is written to the JSON file when it ends, a failed one does not stop
the others.

    scripts/gpu-suite --out gpu-results
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import traceback
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from edgeflow.bench.random_policy import SIZES
from edgeflow.bench.report import report
from edgeflow.bench.sections import SECTIONS, OffError, Setting, with_ceilings
from edgeflow.kernels.implementations import Hardware

FEWEST_FRAMES = 10  # K + 3: a pipe that is full for a few passes


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 when a section failed."""
    options = _options(arguments)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    started = monotonic()
    deadline = started + 60 * options.minutes
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    setting = Setting(device, dtype, SIZES[options.size], options.frames, lambda: deadline - monotonic())
    results: dict[str, Any] = {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": _name(device),
        "dtype": str(dtype).removeprefix("torch."),
        "size": options.size,
        "sections": {},
    }
    for index, name in enumerate(options.sections, start=1):
        print(f"[{index}/{len(options.sections)}] {name}", file=sys.stderr, flush=True)
        section = _run(name, setting)
        results["sections"][name] = section
        results["seconds"] = monotonic() - started
        (out / "gpu-suite.json").write_text(json.dumps(results, indent=2) + "\n")
        (out / "gpu-suite.md").write_text(report(results))
        if name == "ceilings" and section["status"] == "ok":
            setting = with_ceilings(setting, section["found"])
    print((out / "gpu-suite.md").read_text())
    return int(any(section["status"] == "failed" for section in results["sections"].values()))


def _run(name: str, setting: Setting) -> dict[str, Any]:
    """status: ok, failed, or skipped where no time is left."""
    if setting.left_s() <= 0:
        return {"status": "skipped", "error": "no time left", "seconds": 0.0}
    started = monotonic()
    try:
        found: dict[str, Any] = {"status": "ok", "found": SECTIONS[name](setting)}
    except OffError as error:
        found = {"status": "failed", "error": str(error), "found": error.found}
    except Exception as error:  # the other sections still tell something
        traceback.print_exc()
        found = {"status": "failed", "error": f"{type(error).__name__}: {error}"[:300]}
    gc.collect()
    if setting.device.type == "cuda":
        torch.cuda.empty_cache()
    return found | {"seconds": monotonic() - started}


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu-suite", description="Check and measure this machine's GPU.")
    cuda = torch.cuda.is_available()
    parser.add_argument("--sections", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--out", default="gpu-results", help="folder of gpu-suite.json and gpu-suite.md")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if cuda else "cpu")
    parser.add_argument("--size", choices=list(SIZES), default="openvla-7b" if cuda else "tiny")
    parser.add_argument("--frames", type=int, default=40, help="of each timing")
    parser.add_argument("--minutes", type=float, default=10.0, help="no section is started after")
    options = parser.parse_args(arguments)
    if options.frames < FEWEST_FRAMES:
        parser.error(f"--frames: at least {FEWEST_FRAMES}")
    return options


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else Hardware.of(device).profile


if __name__ == "__main__":
    sys.exit(main())
