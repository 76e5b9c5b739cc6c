"""docs/reference/configuration.md: every key of the configuration, from its models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from edgeflow.config.service import ServiceConfig
from edgeflow.contract import KVName
from edgeflow.policies.act.config import ACTSettings
from edgeflow.policies.openvla.family import MAX_RATE_HZ, RATE
from edgeflow.policies.openvla_oft.config import OFTSettings
from edgeflow.policies.pi.config import PiSettings
from scripts.documents.schemas import default_of, kind_of, section_of
from scripts.documents.tables import inline, table

POLICIES: dict[str, type[BaseModel]] = {
    "OpenVLA-OFT": OFTSettings,
    "ACT": ACTSettings,
    "SmolVLA, π0 and π0.5": PiSettings,
}
HEAD = """# Configuration

One JSON file configures a service. Every key has a default, so a file holds only what differs:

```json
{
  "model": "/models/openvla-7b",
  "chat": {"enabled": false},
  "limits": {"cameras": 2}
}
```

```bash
edgeflow config check service.json          # a mistake is one line that names the key
edgeflow serve --config service.json
edgeflow serve --set chat.capacity=4096     # any key, without a file or on top of one
edgeflow config example smolvla             # one to begin with; also act, pi0, pi05, openvla, openvla_oft, chat
edgeflow config schema                      # this page as JSON schema, for an editor
```

Unknown keys, values of another type and numbers out of range are rejected. `[]` in a key stands for an entry of a list,
`NAME` for a name that you choose.

"""
UNITS = (
    ("_ms", "ms"),
    ("_s", "s"),
    ("_hz", "Hz"),
    ("_bytes", "bytes"),
    ("bytes", "bytes"),
    ("_mb", "MiB"),
    ("_percent", "%"),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the configuration."""

    key: str
    kind: str
    default: str
    meaning: str


@dataclass(frozen=True, slots=True)
class SettingGroup:
    """The keys of one section. name: "" for those of the file itself."""

    name: str
    about: str
    settings: tuple[Setting, ...]


def groups(model: type[BaseModel] = ServiceConfig, prefix: str = "") -> list[SettingGroup]:
    """All sections of a model, with the sections in them."""
    schema = model.model_json_schema()
    return list(_groups(schema, schema.get("$defs", {}), prefix))


def page() -> str:
    """The page."""
    text = HEAD
    for group in groups():
        text += f"## {f'`{group.name}`' if group.name else 'The service'}\n\n"
        text += f"{inline(group.about)}\n\n" if group.about and group.name else ""
        text += _table(group.settings) + "\n"
        if group.name == "policy":
            text += _policies()
    return text


def _policies() -> str:
    kinds = ", ".join(f"`{name}`" for name in get_args(KVName))
    rate = Setting(f"policy.{RATE}", f"number (Hz), 0 to {MAX_RATE_HZ:g}", "`0`", "control rate; 0 = not known")
    kv = Setting("policy.kv", kinds, '`"model"`', "KV cache in the model's dtype, in 8 bits or in 4")
    text = "Each family has further keys in this section. Those of a plug-in are in its own documentation.\n\n"
    text += f"### Policy: OpenVLA\n\n{_table((kv, rate))}\n"
    for name, model in POLICIES.items():
        text += f"### Policy: {name}\n\n"
        for group in groups(model, "policy."):
            text += f"{inline(group.about)}\n\n{_table(group.settings)}\n"
    return text


def _table(settings: tuple[Setting, ...]) -> str:
    rows = [(f"`{each.key}`", each.kind, each.default, inline(each.meaning)) for each in settings]
    return table(("Key", "Type", "Default", "Meaning"), rows)


def _groups(schema: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Iterator[SettingGroup]:
    settings: list[Setting] = []
    inner: list[tuple[dict[str, Any], str]] = []
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        key = f"{prefix}{name}"
        section = section_of(field, definitions)
        if section is not None and "description" not in field:
            inner.append((section, f"{key}."))
            continue
        for nested, suffix in _nested(field, definitions):
            inner.append((nested, f"{key}{suffix}."))
        kind = kind_of(field, definitions)
        unit = next((unit for ending, unit in UNITS if name.endswith(ending)), "")
        if unit and kind.startswith(("integer", "number")):
            head, comma, rest = kind.partition(",")
            kind = f"{head} ({unit}){comma}{rest}"
        default = "required" if name in required else default_of(field)
        settings.append(Setting(key, kind, default, field.get("description", "")))
    if settings:
        about = re.sub(r"\s*\(docs/[^)]*\)", "", schema.get("description", ""))
        yield SettingGroup(prefix.removesuffix("."), about, tuple(settings))
    for nested, name in inner:
        yield from _groups(nested, definitions, name)


def _nested(field: dict[str, Any], definitions: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Sections that are an entry of a list or a map, or an alternative, and what their keys begin with."""
    ways = [(field, ""), (field.get("items"), "[]"), (field.get("additionalProperties"), ".NAME")]
    ways += [(each, "") for each in field.get("anyOf", ())]
    for each, suffix in ways:
        section = section_of(each, definitions) if isinstance(each, dict) else None
        if section is not None:
            yield section, suffix
