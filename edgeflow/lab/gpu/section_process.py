"""One section of the GPU suite in a separate process, so that a broken or hung device does not harm other sections.

    python -m edgeflow.lab.gpu.section_process ORDER RESULT

ORDER is an `Order` as JSON. RESULT is the file of the section's status and findings, also while it runs.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from edgeflow.engine.placement import set_precision
from edgeflow.lab.gpu.device import ceilings, facts
from edgeflow.lab.gpu.section_order import LEFT_OUT, Found, Order
from edgeflow.lab.gpu.section_setting import OffError, SectionSetting, SkipError
from edgeflow.lab.gpu.sections.baseline import baseline
from edgeflow.lab.gpu.sections.chat_speed import chat
from edgeflow.lab.gpu.sections.draft_speed import drafts
from edgeflow.lab.gpu.sections.flow_speed import flow_policies
from edgeflow.lab.gpu.sections.frames import frames
from edgeflow.lab.gpu.sections.int4 import int4
from edgeflow.lab.gpu.sections.kernel_checks import kernels
from edgeflow.lab.gpu.sections.long_context import long_context
from edgeflow.lab.gpu.sections.operator_speed import operators
from edgeflow.lab.gpu.sections.policy_speed import fp8, long_actions, policy
from edgeflow.lab.gpu.sections.profiled import passes
from edgeflow.lab.gpu.sections.recorded_outputs import verify
from edgeflow.lab.gpu.sections.served import service
from edgeflow.lab.gpu.sections.token_checks import tokens
from edgeflow.lab.gpu.sections.towers import towers
from edgeflow.lab.gpu.sections.tuning import tune_models

FUNCTIONS: dict[str, Callable[[SectionSetting], Found]] = {
    "facts": facts,
    "ceilings": ceilings,
    "kernels": kernels,
    "tokens": tokens,
    "frames": frames,
    "tune": tune_models,
    "policy": policy,
    "baseline": baseline,
    "flow": flow_policies,
    "chat": chat,
    "drafts": drafts,
    "service": service,
    "verify": verify,
    "fp8": fp8,
    "int4": int4,
    "long-actions": long_actions,
    "towers": towers,
    "long-context": long_context,
    "profile": passes,
    "operators": operators,
}


def run(order: Order, result: Path) -> Found:
    """Run a section and save its findings in `result`.

    Its status is running until it has ended; then ok, partial (not enough time; LEFT_OUT names the rest), failed or
    skipped (`error` says why).
    """
    started = monotonic()

    def keep(status: str, **more: object) -> Found:
        kept: Found = {"status": status, **more, "seconds": monotonic() - started}
        draft = result.with_name(result.name + ".draft")
        draft.write_text(json.dumps(kept))
        draft.replace(result)
        return kept

    def publish(found: Found) -> None:
        keep("running", found=found)

    set_precision()
    try:
        found = FUNCTIONS[order.section](SectionSetting.of(order, publish))
        return keep("partial" if found.get(LEFT_OUT) else "ok", found=found)
    except SkipError as error:
        return keep("skipped", error=str(error))
    except OffError as error:
        return keep("failed", error=str(error), found=error.found)
    except Exception as error:  # the other sections can still run
        traceback.print_exc()
        return keep("failed", error=f"{type(error).__name__}: {error}"[:300])


if __name__ == "__main__":
    run(Order(**json.loads(sys.argv[1])), Path(sys.argv[2]))
