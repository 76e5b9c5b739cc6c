"""The generated pages of docs/reference say what the code says, and leave nothing out."""

from __future__ import annotations

import re

import pytest

import edgeflow_client
from edgeflow.config.service import ServiceConfig, keys_of
from scripts.documents import commands, sdk, settings
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


def test_a_docstring_s_glosses_become_the_meanings_of_names():
    text = "Push.\n\na: of it. b, c: both of\nthem: two. Raises E if not."
    assert sdk.split(text, ["a", "b", "c"]) == (
        "Push.\n\nRaises E if not.",
        {"a": "of it.", "b": "both of\nthem: two.", "c": "both of\nthem: two."},
    )
