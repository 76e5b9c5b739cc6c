"""One section of the GPU suite in a process of its own: what breaks or hangs a device there harms no other section.

    python -m edgeflow.bench.child ORDER RESULT

ORDER: an `Order` as JSON. RESULT: the file that holds the section's status and what it found, also while it runs.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from time import monotonic

from edgeflow.bench.order import SECTIONS, Found, Order

Result = Found


def run(order: Order, result: Path) -> Result:
    """status: ok, failed, skipped (`error` says why), running."""
    started = monotonic()

    def keep(status: str, **more: object) -> Result:
        kept: Result = {"status": status, **more, "seconds": monotonic() - started}
        draft = result.with_name(result.name + ".draft")
        draft.write_text(json.dumps(kept))
        draft.replace(result)
        return kept

    def tell(found: Found) -> None:
        keep("running", found=found)

    from edgeflow.bench.setting import OffError, Setting, SkipError  # torch, after `result` can be written

    try:
        module, name = SECTIONS[order.section].function.split(":")
        section = getattr(import_module(f"edgeflow.bench.{module}"), name)
        return keep("ok", found=section(Setting.of(order, tell)))
    except SkipError as error:
        return keep("skipped", error=str(error))
    except OffError as error:
        return keep("failed", error=str(error), found=error.found)
    except Exception as error:  # the other sections still tell something
        traceback.print_exc()
        return keep("failed", error=f"{type(error).__name__}: {error}"[:300])


def ordered(order: Order) -> str:
    """The command line's ORDER."""
    return json.dumps(asdict(order))


if __name__ == "__main__":
    run(Order(**json.loads(sys.argv[1])), Path(sys.argv[2]))
