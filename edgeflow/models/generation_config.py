"""A checkpoint's sampling defaults and the tokens that end its answers (generation_config.json)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BOUNDS = {"temperature": (0.0, 2.0), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0), "repetition_penalty": (0.01, 10.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """Sampling defaults of a checkpoint; temperature 0 is greedy, top_k 0 is off."""

    stop_ids: frozenset[int]
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, config: Mapping[str, Any], values: Mapping[str, Any]) -> GenerationConfig:
        """config: config.json, which ends answers where generation_config.json (values) does not say; newer ones of
        models with images do so in text_config."""
        places = (values, config, config.get("text_config") or {})
        ends: Any = next((each["eos_token_id"] for each in places if each.get("eos_token_id") is not None), [])
        ids = ends if isinstance(ends, list) else [ends]
        if not all(type(each) is int and each >= 0 for each in ids):
            raise ValueError(f"eos_token_id must be a token id or a list of them, got {ends!r}")
        given = {name: values[name] for name in (*BOUNDS, "top_k") if values.get(name) is not None}
        if not values.get("do_sample"):
            given = {name: given[name] for name in ("repetition_penalty",) if name in given}
        else:
            given.setdefault("temperature", 1.0)
        for name, (least, most) in BOUNDS.items():
            value = given.get(name, least)
            if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
                raise ValueError(f"generation_config {name} must be {least} to {most}, got {value!r}")
        if type(given.get("top_k", 0)) is not int or given.get("top_k", 0) < -1:
            raise ValueError(f"generation_config top_k must be a whole number, at least -1, got {given['top_k']!r}")
        if given.get("top_k") == -1:  # off, as 0
            given["top_k"] = 0
        return cls(stop_ids=frozenset(ids), **given)
