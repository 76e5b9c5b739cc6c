"""The import of a plug-in as control does it: in a separate process, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from edgeflow.config.service import ServiceConfig
from edgeflow.lab.conformance.verdicts import NotConforming, NotJudged
from edgeflow.policies.family import CheckpointFiles
from edgeflow.policies.plugins import TRIAL_S
from edgeflow.policies.registry import FAMILIES, family_of, plugins, try_plugins

UNKNOWN = 64
"""The exit code where no plug-in recognises a checkpoint."""
RETURN = "let everything that control imports return: the module of the Family, its detect and its check"
ADVICE = "everything that control imports (the Family and its check) must import without torch: see write-your-own.md"
CODE = """
import contextlib, json
from pathlib import Path
from edgeflow.policies.family import CheckpointFiles
from edgeflow.policies.registry import plugins
from edgeflow_client.errors import EdgeflowError
directory, named, settings = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
files, faults = CheckpointFiles.of(directory), []
for plugin in plugins().values():
    try:
        if plugin.name == named if named else plugin.recognises(files):
            family = plugin.load()
            break
    except EdgeflowError as error:
        cause = error.__cause__ or error
        faults.append(f"{plugin.origin}: {type(cause).__name__}: {cause}")
else:
    sys.exit("; ".join(faults) or 64)
with contextlib.suppress(EdgeflowError):  # "load" reports it
    family.check(directory, settings)
if "torch" in sys.modules:
    sys.exit(f"{plugin.origin}: its check imports torch")
print(plugin.origin)
"""


def check_import(config: ServiceConfig, path: Path) -> str:
    """A plug-in is imported, and checks a checkpoint, without torch."""
    named = config.policy.family
    files = CheckpointFiles.of(path)
    built_in = [family.name for family in FAMILIES if (family.name == named if named else family.detect(files))]
    if built_in:
        raise NotJudged(f"{built_in[0]} is built in")
    try_plugins(path, named, config.policy.settings)
    for plugin in plugins().values():
        if plugin.fault and named in ("", plugin.name):
            raise NotConforming(f"{plugin.origin}: {plugin.fault}", RETURN)
    settings = config.policy.model_dump_json(exclude={"family"})
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}{CODE}", str(path), named, settings]
    process = subprocess.run(command, capture_output=True, text=True, timeout=2 * TRIAL_S, check=False)
    if process.returncode == UNKNOWN:
        family_of(path, named)  # says which families there are
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
        raise NotConforming(lines[-1], ADVICE if "torch" in lines[-1] else "see the message")
    return f"{process.stdout.strip()} is imported without torch"
