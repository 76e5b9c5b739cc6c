"""Devices that `profile` can emulate, by their published times (devices.json). No torch, no engine.

Two kinds of totals are published, and each is split by an assumption (engine/control/profile.py):

- serial_ms, packed_ms: of a token policy, a frame by serial decoding and a full packed pass.
- chunk_ms: of a flow policy, a whole chunk.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

PUBLISHED_DEVICES: Final[dict[str, dict[str, Any]]] = json.loads(Path(__file__).with_suffix(".json").read_text())
PROFILE_NAMES: Final = ("none", *PUBLISHED_DEVICES)
"""The values of `profile`, besides a JSON file of times; `none` = the times of this machine."""
PROFILE_HELP: Final = f"Emulate a device by slowing passes down: {', '.join(PROFILE_NAMES)}, or a JSON file of times."
