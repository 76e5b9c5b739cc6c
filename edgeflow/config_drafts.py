"""Sections of the configuration about chat's drafts: heads that draft, and look-up in the sequence itself."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field, model_validator

from edgeflow.config_base import Section

DraftKind = Literal["none", "lookup", "eagle3"]
ROWS, DEPTH, WIDTH = 60, 7, 10
"""Rows of a verification, forwards after the first, and drafts per node of a tree, where they are unset."""
MOST_ROWS = 63  # of a verification, and of the head's own drafts in a pass


class EagleConfig(Section):
    """Drafts by an EAGLE-3 head (docs/chat.md). Off without a head."""

    model: str = Field("", description="directory or hub id of the chat model's EAGLE-3 head; empty = none")
    rows: int | None = Field(
        None,
        ge=2,
        le=MOST_ROWS,
        description="rows of a verification, the newest token included; "
        f"unset = {ROWS}, or fewer where depth and width draft fewer",
    )
    depth: int = Field(DEPTH, ge=1, le=16, description="forwards of the head after its first")
    width: int | None = Field(None, ge=2, le=32, description=f"drafts per node of the tree; unset = {WIDTH}")
    chain: bool = Field(False, description="verify a chain of depth + 1 drafts instead of a tree")

    @property
    def pass_rows(self) -> int:
        """Rows of a verification: the newest token and its drafts."""
        if self.chain:
            return self.depth + 2
        return min(ROWS, 1 + self._most_drafts) if self.rows is None else self.rows

    @property
    def top(self) -> int:
        """Drafts per node: 1 in a chain."""
        if self.chain:
            return 1
        return WIDTH if self.width is None else self.width

    @property
    def _most_drafts(self) -> int:
        """Drafts of a whole tree: `top` from the first forward, and `top` for each of `top` nodes from every other."""
        return self.top + self.depth * self.top**2

    @model_validator(mode="after")
    def _settings_need_a_head(self) -> EagleConfig:
        changed = _changed(self)
        if changed and not self.model:
            name, value = next(iter(changed.items()))
            raise ValueError(
                f"{name} is {json.dumps(value)}, but model is empty: name the EAGLE-3 head, or remove {name}"
            )
        return self

    @model_validator(mode="after")
    def _a_chain_has_its_own_size(self) -> EagleConfig:
        for name, value, fixed in (("rows", self.rows, self.pass_rows), ("width", self.width, self.top)):
            if self.chain and value is not None:
                raise ValueError(
                    f"{name} is {value}, but chain is true, and a chain of depth {self.depth} has {name} {fixed}: "
                    f"remove {name}, or set chain to false"
                )
        return self

    @model_validator(mode="after")
    def _the_tree_has_room(self) -> EagleConfig:
        most, sizes = self._most_drafts, f"depth {self.depth} and width {self.top}"
        if self.rows is not None and self.rows - 1 > most:
            raise ValueError(
                f"rows is {self.rows}, but {sizes} give at most {most} drafts beside the newest token: "
                f"lower rows to {most + 1}, or raise depth or width"
            )
        kept = (self.depth - 1) * self.top
        if kept > MOST_ROWS:
            raise ValueError(
                f"{sizes}: (depth - 1) x width is {kept}, but at most {MOST_ROWS} is possible: lower width to "
                f"{max(MOST_ROWS // (self.depth - 1), 2)} or less, or depth to {1 + MOST_ROWS // self.top} or less"
            )
        return self


class LookupConfig(Section):
    """Drafts by prompt look-up: the tokens that followed the newest ones where they last stood in the sequence."""

    drafts: int = Field(8, ge=1, le=31, description="most drafts in a pass")
    longest: int = Field(4, ge=1, le=16, description="tokens of the longest run that is searched for")
    shortest: int = Field(1, ge=1, le=16, description="tokens of the shortest run that is searched for")

    @property
    def changed(self) -> dict[str, Any]:
        """The settings other than the defaults."""
        return _changed(self)

    @model_validator(mode="after")
    def _runs_are_in_order(self) -> LookupConfig:
        if self.shortest > self.longest:
            raise ValueError(
                f"shortest is {self.shortest}, but longest is {self.longest}: lower shortest, or raise longest"
            )
        return self


def _changed(section: Section) -> dict[str, Any]:
    """The settings of a section that are not the defaults."""
    fields = type(section).model_fields
    return {name: value for name, value in section if value != fields[name].default}
