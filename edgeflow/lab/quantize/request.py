"""The request for a quantisation, of a chat model or of a policy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeflow.lab.quantize.files.source import Grouping
from edgeflow.lab.quantize.search.block_search import SearchSettings
from edgeflow.lab.quantize.search.scales import ScaleForm
from edgeflow.models.checkpoint import fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A checkpoint to quantise."""

    folder: Path
    out: Path
    group: int | None
    """None for the default."""
    form: ScaleForm
    identity: bool
    clip: bool
    """All three: as in SearchSettings."""
    calibration: str
    """Built-in, the name of another kind, or the path of a file."""
    seed: int
    """Seed of the samples or frames."""

    def settings(self, group: int) -> SearchSettings:
        """The search settings of this request, in groups of G."""
        return SearchSettings(group=group, form=self.form, identity=self.identity, clip=self.clip)

    def stated(self, grouping: Grouping) -> dict[str, Any]:
        """The settings that must be equal to resume a search, besides its calibration: JSON values."""
        return {
            "model": fingerprint(self.folder),
            **asdict(self.settings(grouping.group)),
            "form": self.form.value,
            "intermediate_size": grouping.inner,
            "seed": self.seed,
        }
