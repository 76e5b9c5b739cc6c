"""The configuration file: defaults, overrides, and errors that name the key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub.utils import filter_repo_objects

from edgeflow.config.service import ServiceConfig, load_config, schema_json
from edgeflow.hub import HUB_FILES
from edgeflow.model_paths import EMBEDDED_CHAT_MODEL, is_hub_id, resolve_model
from edgeflow_client.errors import CheckpointError, ConfigError


def write(path: Path, value: object) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def eagle3(chat: dict[str, object] | None = None, **head: object) -> dict[str, object]:
    """A configuration with an EAGLE-3 head called h."""
    return {"chat": {"draft": "eagle3", "eagle3": {"model": "h", **head}, **(chat or {})}}


def test_sessions_that_choose_no_mode_are_served_automatically():
    assert ServiceConfig().mode == "auto"


def test_defaults_are_loopback_and_the_embedded_policy():
    config = load_config(None, {})
    assert (config.model, config.alias, config.grpc.host, config.http.host) == (
        "demo",
        "demo",
        "127.0.0.1",
        "127.0.0.1",
    )


def test_a_missing_embedded_policy_is_reported_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("edgeflow.model_paths.EMBEDDED_POLICY", tmp_path)
    with pytest.raises(CheckpointError, match="edgeflow train-demo"):
        load_config(None, {}).model_path  # noqa: B018
    (tmp_path / "config.json").write_text("{}")
    assert load_config(None, {}).model_path == tmp_path


def test_overrides_come_before_the_file(tmp_path: Path):
    path = write(tmp_path / "c.json", {"mode": "serial", "grpc": {"port": 1}, "max_sessions": 4})
    config = load_config(path, {"grpc.port": 0, "max_sessions": None, "http.port": 7})
    assert (config.mode, config.grpc.port, config.http.port, config.max_sessions) == ("serial", 0, 7, None)


def test_the_worker_reads_what_the_front_wrote(tmp_path: Path):
    config = load_config(None, {"model": "openvla/openvla-7b", "threads": 2})
    assert config.alias == "openvla-7b"
    assert load_config(write(tmp_path / "c.json", config.model_dump_json()), {}) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"grpc": {"prot": 1}}, "grpc.prot: unknown key; did you mean grpc.port?"),
        ({"max_session": 1}, "max_session: unknown key; did you mean max_sessions?"),
        ({"action_ttl_ms": 1}, "action_ttl_ms: unknown key; did you mean timing.action_ttl_ms?"),
        ({"zzz": 1}, "zzz: unknown key; known: model, alias"),
        ({"grpc": {"port": 70000}}, "grpc.port: 70000 should be less than or equal to 65535"),
        ({"timing": {"action_ttl_ms": 900}}, "timing.action_ttl_ms: 900 should be less than or equal to 500"),
        (
            {"trajectory": {"limits": {"x": {"velocity": 0}}}},
            "trajectory.limits.x.velocity: 0 should be greater than 0",
        ),
        ({"trajectory": {"limits": {"x": {"low": 1, "high": 0}}}}, "trajectory.limits.x: low: 1 is not below high, 0"),
        ({"trajectory": {"limit": {}}}, "trajectory.limit: unknown key; did you mean trajectory.limits?"),
        ({"max_sessions": "8"}, 'max_sessions: "8" should be a valid integer'),
        ({"mode": "fast"}, "mode: \"fast\" should be 'serial', 'pipelined', 'depth', 'speculative' or 'auto'"),
        ({"model": 3}, "model: 3 should be a valid string"),
        ({"grpc": 3}, "grpc: 3 "),
        ({"grpc": {"host": "0.0.0.0"}}, "grpc.host: 0.0.0.0 is reachable from other machines"),
        ({"http": {"host": "::"}}, "http.host: :: is reachable from other machines"),
        ({"mode": "depth"}, "depth: required with mode depth: 1 (serial) to K (pipelined)"),
        ({"mode": "speculative", "tolerance_bins": 3}, "tolerance_bins: 3 should be less than or equal to 2"),
        ({"mode": "speculative", "max_passes": 65}, "max_passes: 65 should be less than or equal to 64"),
        ({"tolerance_bins": 1}, "tolerance_bins: may only be set with mode speculative"),
        ({"mode": "serial", "max_passes": 1}, "max_passes: may only be set with mode speculative"),
        ({"tls": {"cert": "x"}}, "tls: cert and key must be given together"),
        ({"http": {"host": "example.org"}}, "http.host: example.org is reachable"),
        ({"chat": {"long": {"segment": 0}}}, "chat.long.segment: 0 should be greater than or equal to 1"),
        ({"chat": {"long": {"gate": "g", "window": 0}}}, "chat.long.window: 0 should be greater than or equal to 1"),
        ({"chat": {"long": {"length": 131073}}}, "chat.long.length: 131073 should be less than or equal to 131072"),
        ({"chat": {"long": {"windows": 4}}}, "chat.long.windows: unknown key; did you mean chat.long.window?"),
        ({"chat": {"long": {"window": 4}}}, "chat.long: window is 4, but gate is empty: name the gate"),
        ({"chat": {"long": {"length": 131072}}}, "length is 131072, but gate is empty: name the gate of the chat"),
        ({"chat": {"long": {"length": 16}}}, "chat.long: length is 16, but gate is empty: name the gate"),
        (
            {"chat": {"long": {"gate": "g", "window": 300}, "capacity": 256}},
            "chat: long.window is 300, but a slot holds at most capacity = 256 tokens",
        ),
        (
            {"chat": {"long": {"gate": "g", "sink": 100, "segment": 200}, "capacity": 256}},
            "chat: long.sink 100 + long.segment 200 are 300 tokens, but capacity is 256",
        ),
        (
            {"chat": {"long": {"gate": "g", "sink": 0, "window": 60, "segment": 5, "length": 64}}},
            "chat: long.sink 0 + long.window 60 + long.segment 5 are 65 tokens, but long.length is 64",
        ),
        ({"chat": {"long": {"gate": "g.json"}, "kv": "int8"}}, "chat: kv is int8, but long.gate g.json needs keys"),
        (
            {"chat": {"long": {"gate": "g.json"}, "decode_model": "other"}},
            "chat: decode_model is other, but long.gate g.json is a gate for one model",
        ),
        (
            {"chat": {"long": {"gate": "g", "length": 100_000}}, "limits": {"http_body_bytes": 1 << 19}},
            "limits.http_body_bytes is 524288, but a prompt of chat.long.length = 100000 tokens may take 800000",
        ),
        ({"chat": {"draft": "eagle"}}, "chat.draft: \"eagle\" should be 'none', 'auto', 'lookup' or 'eagle3'"),
        ({"chat": {"draft": "eagle3"}}, "chat: draft is eagle3, but eagle3.model is empty: name the EAGLE-3 head"),
        (
            {"chat": {"eagle3": {"model": "h"}}},
            "chat: eagle3.model is h, but draft is none: set draft to eagle3, or remove eagle3.model",
        ),
        ({"chat": {"draft": "lookup", "eagle3": {"model": "h"}}}, "chat: eagle3.model is h, but draft is lookup"),
        (
            {"chat": {"lookup": {"drafts": 4}}},
            "chat: lookup.drafts is 4, but draft is none: set draft to lookup, or remove lookup.drafts",
        ),
        (
            {"chat": {"draft": "eagle3", "eagle3": {"model": "h"}, "lookup": {"longest": 5}}},
            "chat: lookup.longest is 5, but draft is eagle3",
        ),
        (
            {"chat": {"draft": "lookup", "lookup": {"drafts": 32}}},
            "chat.lookup.drafts: 32 should be less than or equal",
        ),
        ({"chat": {"lookup": {"draft": 4}}}, "chat.lookup.draft: unknown key; did you mean chat.lookup.drafts?"),
        (
            {"chat": {"draft": "lookup", "lookup": {"shortest": 5}}},
            "chat.lookup: shortest is 5, but longest is 4: lower shortest, or raise longest",
        ),
        ({"chat": {"eagle3": {"depth": 5}}}, "chat.eagle3: depth is 5, but model is empty: name the EAGLE-3 head"),
        ({"chat": {"eagle3": {"chain": True}}}, "chat.eagle3: chain is true, but model is empty"),
        (eagle3(rows=64), "chat.eagle3.rows: 64 should be less than or equal to 63"),
        (eagle3(depth=0), "chat.eagle3.depth: 0 should be greater than or equal to 1"),
        (eagle3(width=33), "chat.eagle3.width: 33 should be less than or equal to 32"),
        (eagle3(chain=True, rows=9), "rows is 9, but chain is true, and a chain of depth 7 has rows 9: remove rows"),
        (
            eagle3(chain=True, width=10),
            "width is 10, but chain is true, and a chain of depth 7 has width 1: remove width",
        ),
        (eagle3(width=1), "chat.eagle3.width: 1 should be greater than or equal to 2"),
        (
            eagle3(rows=32, width=2),
            "chat.eagle3: rows is 32, but depth 7 and width 2 give at most 30 drafts beside the newest token: "
            "lower rows to 31, or raise depth or width",
        ),
        (
            eagle3(depth=8),
            "chat.eagle3: depth 8 and width 10: (depth - 1) x width is 70, but at most 63 is possible: lower width",
        ),
        (
            eagle3({"decode_model": "other"}),
            "chat: decode_model is other, but eagle3.model h is a head for one model: remove one of them",
        ),
        (eagle3({"draft": "auto", "decode_model": "other"}), "chat: decode_model is other, but eagle3.model h"),
        (eagle3({"weights": "int8"}), "chat: weights is int8, but draft is eagle3: 8-bit decode weights serve single"),
        (
            {"chat": {"draft": "lookup", "weights": "int8"}},
            "chat: weights is int8, but draft is lookup: 8-bit decode weights serve single rows",
        ),
        (eagle3({"kv": "int4"}), "chat: kv is int4, but eagle3.chain is false: a tree of drafts needs positions"),
        ('{"mode": "auto", "mode": "serial"}', "c.json gives mode twice: remove one of them"),
        ('{"chat": {"kv": "int8", "kv": "int4"}}', "c.json gives chat.kv twice"),
        ('{"chat": {"slots": [{}, {"id": "a", "id": "b"}]}}', "c.json gives chat.slots[1].id twice"),
        ('{"grpc": {"port": 1, "port": 2}, "grpc": {"port": 3}}', "c.json gives grpc twice"),
        ('{"' + "x" * 9000 + '": {"a": 1, "a": 1}}', "xxx.a twice: remove one of them"),
        (
            {"chat": {"slots": [{"id": "a", "text": "x"}, {"id": "b", "text": "x"}, {"id": "a", "text": "y"}]}},
            "chat: slots: 2 have the id 'a': give each its own",
        ),
        ({"modle": "demo"}, "modle: unknown key; did you mean model?"),
        ({"grpc": {"prot": 1}}, "grpc.prot: unknown key; did you mean grpc.port?"),
        ("{", "line 1 column 2"),
        ("[]", "must hold one JSON object"),
        ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "line 1 column 1"),
    ],
)
def test_faults_are_reported_in_one_line(tmp_path: Path, values: object, message: str):
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path / "c.json", values), {})
    assert message in caught.value.text and "\n" not in caught.value.text


@pytest.mark.parametrize(
    ("head", "rows", "top"),
    [
        ({}, 60, 10),
        ({"rows": 63}, 63, 10),
        ({"width": 2}, 31, 2),
        ({"width": 2, "rows": 31}, 31, 2),
        ({"depth": 16, "width": 4}, 60, 4),
        ({"chain": True}, 9, 1),
        ({"chain": True, "depth": 16}, 18, 1),
    ],
)
def test_a_verification_has_as_many_rows_as_there_are_drafts(head: dict[str, object], rows: int, top: int):
    chosen = ServiceConfig.model_validate(eagle3(**head)).chat.eagle3
    assert (chosen.pass_rows, chosen.top) == (rows, top)


@pytest.mark.parametrize(
    ("chat", "kind"),
    [
        ({}, "none"),
        ({"draft": "lookup", "lookup": {"drafts": 3}, "kv": "int4", "decode_model": "other"}, "lookup"),
        ({"draft": "auto"}, "lookup"),
        ({"draft": "auto", "weights": "fp8"}, "lookup"),
        ({"draft": "auto", "weights": "int8"}, "none"),
        ({"draft": "auto", "weights": "auto"}, "none"),
        ({"draft": "auto", "eagle3": {"model": "h"}, "lookup": {"drafts": 3}}, "eagle3"),
        ({"draft": "auto", "eagle3": {"model": "h"}, "weights": "int8"}, "none"),
        ({"draft": "eagle3", "eagle3": {"model": "h", "chain": True}, "kv": "int4"}, "eagle3"),
    ],
)
def test_drafts_are_chosen_by_the_head_and_the_weights(tmp_path: Path, chat: dict[str, object], kind: str):
    config = load_config(write(tmp_path / "c.json", {"chat": chat}), {})
    assert config.chat.draft_kind == kind
    assert load_config(write(tmp_path / "again.json", config.model_dump_json()), {}) == config


def test_a_missing_file_and_an_override_into_a_number(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot read .*nope\.json: No such file"):
        load_config(tmp_path / "nope.json", {})
    with pytest.raises(ConfigError, match="grpc: must be an object"):
        load_config(write(tmp_path / "c.json", {"grpc": 3}), {"grpc.port": 1})


def test_outside_addresses_need_the_flag():
    assert load_config(None, {"grpc.host": "0.0.0.0", "insecure": True}).insecure
    assert load_config(None, {"grpc.host": "::1", "http.host": "localhost"}).grpc.host == "::1"


def test_every_key_is_in_the_schema():
    properties = json.loads(schema_json())["properties"]
    assert set(properties) == set(ServiceConfig.model_fields)


def test_models_are_directories_or_hub_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_model(str(tmp_path)) == tmp_path
    assert is_hub_id("openvla/openvla-7b")
    for name in ("/no/where", "./no", "no", "a/b/c", "../x", "~/x"):
        assert not is_hub_id(name)
        with pytest.raises(CheckpointError, match="is not a directory"):
            resolve_model(name)


def test_the_embedded_models_are_named_to_those_who_may_have_them():
    with pytest.raises(CheckpointError, match=r"a hub id, demo or demo-flow$"):
        resolve_model("no")
    with pytest.raises(CheckpointError, match=r"a hub id, demo, demo-flow, demo-chat or demo-logs$"):
        resolve_model("no", chat=True)
    assert resolve_model("demo-chat", chat=True) == EMBEDDED_CHAT_MODEL


def test_weights_and_texts_are_fetched_from_the_hub_but_no_code():
    wanted = ["config.json", "model-00001-of-00002.safetensors", "tokenizer.model", "merges.txt", "chat_template.jinja"]
    others = ["modeling_openvla.py", "pytorch_model.bin", "model.gguf"]
    assert list(filter_repo_objects([*wanted, *others], allow_patterns=list(HUB_FILES))) == wanted


def test_reading_a_configuration_loads_no_framework():
    code = "import sys, edgeflow.config.service as c; c.load_config(None, {}); "
    code += "print({'torch', 'fastapi', 'grpc'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_cameras_and_state_map_the_policy_s_names_to_the_robot_s(tmp_path: Path):
    path = tmp_path / "edgeflow.json"
    path.write_text(json.dumps({"cameras": {"top": "front"}, "state": {"state": ["arm", "gripper"], "pose": "tcp"}}))
    config = load_config(path, {})
    assert config.cameras == {"top": "front"}
    assert config.state == {"state": ["arm", "gripper"], "pose": "tcp"}
    assert load_config(None, {}).cameras == load_config(None, {}).state == {}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"cameras": ["top"]}, "cameras"),
        ({"cameras": {"top": 1}}, "cameras.top"),
        ({"cameras": {"top": ""}}, "cameras.top"),
        ({"cameras": {"top": "x" * 65}}, "cameras.top"),
        ({"cameras": {str(index): "a" for index in range(17)}}, "cameras"),
        ({"state": {"pose": []}}, "state.pose"),
        ({"state": {"pose": [1]}}, "state.pose"),
    ],
)
def test_a_bad_mapping_names_its_key(tmp_path: Path, values: object, key: str):
    path = tmp_path / "edgeflow.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=rf"^{key}"):
        load_config(path, {})


def test_a_configuration_may_come_through_a_pipe():
    """As from `--config <(jq … base.json)`."""
    reader, writer = os.pipe()
    os.write(writer, b'{"max_sessions": 3}')
    os.close(writer)
    try:
        assert load_config(Path(f"/dev/fd/{reader}"), {}).max_sessions == 3
    finally:
        os.close(reader)
