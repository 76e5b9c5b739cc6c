"""Section: the comparisons of `edgeflow verify` on this device, for every recorded checkpoint of a folder
(--bundles).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgeflow.lab.gpu.section_order import LEFT_OUT, Found
from edgeflow.lab.gpu.section_setting import OffError, SectionSetting, SkipError
from edgeflow_client.errors import EdgeflowError


def verify(setting: SectionSetting) -> Found:
    """A row per bundle; OffError if one differs, or if none could be checked."""
    if setting.bundles is None:
        raise SkipError("no folder of recorded checkpoints is given: --bundles")
    bundles = sorted(path.parent for path in setting.bundles.glob("**/cases.json"))
    if not bundles:
        raise SkipError(f"no recorded checkpoint in {setting.bundles}")
    found: Found = {"bundles": []}
    for bundle in bundles:
        name = bundle.relative_to(setting.bundles).as_posix()
        if setting.left_s < 0:
            found.setdefault(LEFT_OUT, []).append(name)
            continue
        found["bundles"].append({"bundle": name, **_checked(setting, bundle)})
        setting.publish(found)
    if off := [row["bundle"] for row in found["bundles"] if row["result"] == "differs"]:
        raise OffError(f"{', '.join(off)}: differs from the recorded outputs", found)
    if LEFT_OUT not in found and all(row["result"] == "not checked" for row in found["bundles"]):
        raise OffError("no bundle could be checked", found)
    return found


def _checked(setting: SectionSetting, bundle: Path) -> Found:
    """One bundle; "not checked" if its family cannot be verified, or if it cannot be read."""
    try:
        from edgeflow.lab.verify.checkpoint import verify_checkpoint
    except ImportError as error:
        raise SkipError(f"bundles cannot be verified: {error}; see --wheels") from None
    device: dict[str, Any] = {"device": "cuda"} if setting.cuda else {}
    try:
        results = verify_checkpoint(bundle, [], lambda *_: None, **device)
    except EdgeflowError as error:
        return {"result": "not checked", "why": str(error)[:300]}
    off = [(mode, each) for mode, each in results if not each.ok]
    found: Found = {"result": "differs" if off else "agrees", "comparisons": len(results), "off": len(off)}
    if off:
        mode, first = off[0]
        found["why"] = f"{mode}, {first.case}: {first.quantity}"
    return found
