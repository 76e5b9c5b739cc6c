"""Common parts of the benchmark commands: options, and the result file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser with --json, the result file for `keep`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser


def keep(path: Path | None, report: Mapping[str, object]) -> None:
    """Write the figures to the result file, if one was given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n")
