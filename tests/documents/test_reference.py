"""The generated pages of docs/reference say what the code says, and leave nothing out."""

from __future__ import annotations

import json
import re

import pytest

import edgeflow_client
from edgeflow.config.service import ServiceConfig, keys_of
from edgeflow.service.frontends.act import parse_body
from edgeflow_client.rpc import control_pb2 as pb
from scripts.documents import commands, http, protocol, sdk, settings
from scripts.documents.__main__ import PAGES, REFERENCE, written


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str):
    assert (REFERENCE / name).read_text() == written(name), "run `python -m scripts.documents`"


def test_every_setting_is_listed_once_and_says_what_it_means():
    listed = [each for group in settings.groups() for each in group.settings]
    keys = [each.key for each in listed]
    sections = {group.name for group in settings.groups()}
    assert sorted(keys) == sorted(set(keys))
    assert {key for key in keys_of(ServiceConfig) if key not in sections} <= {*keys, "trajectory"}
    assert [each.key for each in listed if not each.meaning] == []


@pytest.mark.parametrize("name", settings.POLICIES)
def test_every_setting_of_a_policy_says_what_it_means(name: str):
    listed = [each for group in settings.groups(settings.POLICIES[name], "policy.") for each in group.settings]
    assert listed and [each.key for each in listed if not each.meaning] == []


def test_every_command_and_option_says_what_it_does():
    everyday, laboratory = commands.commands()
    found = {each.name: each for each in (*everyday, *laboratory)}
    assert {"serve", "demo", "robot", "token new"} <= {each.name for each in everyday}
    assert {"verify", "tune"} <= {each.name for each in laboratory} and len(found) == len(everyday) + len(laboratory)
    assert [name for name, each in found.items() if not each.text.strip()] == []
    assert [(name, each.names) for name, command in found.items() for each in command.options if not each.meaning] == []


def test_every_name_of_the_client_is_listed():
    assert set(edgeflow_client.__all__) - {"EdgeflowError"} <= sdk.names()
    text = sdk.page()
    for name in edgeflow_client.__all__:
        assert re.search(rf"^(### |\| )`{name}`", text, re.MULTILINE), name
    assert re.findall(r"^\| `\w+` \|.*\|  \|$", text, re.MULTILINE) == [], "say what it means"


def test_a_docstring_s_glosses_become_the_meanings_of_names():
    text = "Push.\n\na: of it. b, c: both of\nthem: two. Raises E if not."
    assert sdk.split(text, ["a", "b", "c"]) == (
        "Push.\n\nRaises E if not.",
        {"a": "of it.", "b": "both of\nthem: two.", "c": "both of\nthem: two."},
    )


def test_every_route_has_a_plain_summary_and_every_field_of_a_body_a_meaning():
    paths = http.document()["paths"]
    page = http.page()
    for path, operations in paths.items():
        for method, operation in operations.items():
            assert f"`{method.upper()} {path}`" in page
            assert re.fullmatch(r"[A-Z][a-z]+( [A-Za-z]+)*", operation["summary"]), path
            assert operation["summary"].lower() not in ("healthz", "readyz", "act", "show metrics")
            assert operation["description"] and len(operation["tags"]) == 1, path
            assert {"422"}.isdisjoint(operation["responses"]), "this service answers 400"
    assert re.findall(r"^\| `\w+` .* \|  \|$", page, re.MULTILINE) == []


def test_the_examples_of_an_action_are_requests_that_are_served():
    content = http.document()["paths"]["/v1/act"]["post"]["requestBody"]["content"]["application/json"]
    bodies = [
        parse_body("application/json", json.dumps(each["value"]).encode()) for each in content["examples"].values()
    ]
    assert [len(body.images) + bool(body.image) for body in bodies] == [1, 1] and bodies[1].state


def test_the_protocol_s_page_has_every_message_and_field():
    found = {each.name: [name for _, name, _ in each.rows] for each in protocol.blocks(protocol.PROTO.read_text())}
    file = pb.DESCRIPTOR
    expected = {name: [each.name for each in message.fields] for name, message in file.message_types_by_name.items()}
    expected |= {name: [each.name for each in enum.values] for name, enum in file.enum_types_by_name.items()}
    expected |= {name: [each.name for each in service.methods] for name, service in file.services_by_name.items()}
    assert {name: sorted(fields) for name, fields in found.items()} == {
        name: sorted(fields) for name, fields in expected.items()
    }


def test_a_comment_goes_on_in_the_next_line_or_stands_above():
    fields = "  // Said\n  // before.\n  int32 a = 1;  // one,\n                // two\n  int32 b = 2;\n"
    (block,) = protocol.blocks(f"// A.\nmessage M {{\n{fields}}}\n")
    assert (block.about, [row[2] for row in block.rows]) == ("A.", ["Said before. one, two", ""])
