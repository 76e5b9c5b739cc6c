"""Board and alerts: each expression reads metrics, labels and values that a service shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from edgeflow.contract import StageProgram
from edgeflow.scheduler.pace import paces_of
from edgeflow.service.observe.health import HealthState
from edgeflow.service.sessions.observers import Metrics
from edgeflow_client.loadtest.palette import QUANTITIES
from edgeflow_client.reasons import Reason
from edgeflow_client.types import Command, Disposition, Execution
from scripts.documents.links import anchors
from tests.service.observe.test_metrics_page import exported, watched

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy/monitoring"
BOARD = json.loads((MONITORING / "grafana/edgeflow.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
RULES = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
TESTS = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
COMPOSE = yaml.safe_load((MONITORING / "compose.yaml").read_text())["services"]
PROMETHEUS = (MONITORING / "prometheus.yml").read_text()

OF_A_SCRAPE = {"job", "instance"}
SERIES = {"up": OF_A_SCRAPE} | dict.fromkeys(watched(), OF_A_SCRAPE)
for name, kind, labels in exported():
    parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
    SERIES |= {name + part: OF_A_SCRAPE | labels | ({"le"} if part == "_bucket" else set()) for part in parts}


def texts(kind: type[Enum]) -> set[str]:
    return {str(each.value) for each in kind}


VALUES = {
    "reason": {"", *texts(Reason), *(reason.label for reason in Reason)},
    "disposition": texts(Disposition),
    "execution": texts(Execution),
    "state": texts(HealthState),
    "process": {"control", "gateway", "robots", "chat"},
    "cause": {
        sample.labels["cause"]
        for family in Metrics().registry.collect()
        for sample in family.samples
        if "cause" in sample.labels
    },
}
"""Values of labels that are known, besides those of `mode`, which depend on the metric."""
COMMANDS, PACES = texts(Command), {*paces_of(StageProgram.tokens(7))}

GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
MATCHER = re.compile(r'\s*(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"\s*(?:,|$)')
METRIC = re.compile(r"\b([a-zA-Z_:][\w:]*)\b(?!\s*\()(?:\{([^}]*)\})?")
WORDS = {"and", "or", "unless", "bool", "offset"}


def faults(expression: str, legend: str = "") -> list[str]:
    """What an expression or its legend asks for that no service shows."""
    found, known = [], set()
    grouped = [label for each in GROUPING.findall(expression) for label in re.findall(r"\w+", each)]
    plain = re.sub(r"\[[^\]]*\]", "", GROUPING.sub("", expression))
    for name, matchers in METRIC.findall(plain):
        if name in WORDS:
            continue
        if name not in SERIES:
            found.append(f"metric {name}")
            continue
        known |= SERIES[name]
        if MATCHER.sub("", matchers):
            found.append(f"matchers {matchers}")
        for label, operator, value in MATCHER.findall(matchers):
            if label not in SERIES[name]:
                found.append(f"label {label} of {name}")
            elif not value.startswith("$") and label not in {*OF_A_SCRAPE, "le"}:
                modes = COMMANDS if name == "edgeflow_actions_total" else PACES
                allowed = modes if label == "mode" else VALUES.get(label, set())
                values = value.split("|") if "~" in operator else [value]
                found += [f"{label}={each}" for each in values if each not in allowed]
    return found + [f"label {label}" for label in (*grouped, *re.findall(r"{{(\w+)}}", legend)) if label not in known]


def expressions() -> Iterator[tuple[str, str, str]]:
    """Where each expression stands, the expression, and the legend of its series."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
    for rule in RULES:
        used = " ".join(f"{{{{{label}}}}}" for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        yield rule["alert"], rule["expr"], used
    for test in TESTS:
        for series in test["input_series"]:
            yield f"the test {test['name']}", series["series"], ""
    for block in re.findall(r"```promql\n(.*?)```", (ROOT / "docs/operate/metrics.md").read_text(), re.DOTALL):
        for line in block.splitlines():
            if not line.startswith("#"):
                yield "docs/operate/metrics.md", line, ""


def test_each_expression_reads_what_a_service_shows():
    found = [(where, fault) for where, expression, legend in expressions() for fault in faults(expression, legend)]
    assert found == []


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(edgeflow_frame_total[5m])", "metric edgeflow_frame_total"),
        ("edgeflow_sessions_bucket", "metric edgeflow_sessions_bucket"),
        ('sum(edgeflow_frames_total{outcome="acted"})', "label outcome of edgeflow_frames_total"),
        ('edgeflow_frames_total{disposition=~"acted|lost"}', "disposition=lost"),
        ('edgeflow_safe_action_total{reason="WORKER_LATE"}', "reason=WORKER_LATE"),
        ('rate(edgeflow_actions_total{mode="serial"}[5m])', "mode=serial"),
        ('edgeflow_predicted_fps{mode="act"}', "mode=act"),
        ("sum by (robot) (edgeflow_sessions)", "label robot"),
        ("sum(up) / on (instance) group_left (model) sum(edgeflow_sessions)", "label model"),
    ],
)
def test_what_no_service_shows_is_found(expression: str, fault: str):
    assert faults(expression) == [fault]


def test_panels_have_units_and_explanations_and_do_not_overlap():
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len({*ids}) == len(ids) and len({panel["title"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in ("none", "s", "cps", "percentunit"), panel["title"]
        assert defaults["unit"] != "s" or all("_seconds" in target["expr"] for target in panel["targets"])
        assert panel["description"].endswith(".") and panel["datasource"]["uid"] == "${datasource}"
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)


def test_quantities_have_the_colours_of_all_other_pictures():
    shown: list[tuple[str, str]] = []
    for panel in PANELS:
        for override in panel["fieldConfig"]["overrides"]:
            ((name, colour),) = ((override["matcher"]["options"], each["value"]) for each in override["properties"])
            if name in QUANTITIES:
                shown.append((name, colour["fixedColor"]))
    assert {*shown} == {(name, QUANTITIES[name]) for name, _ in shown} and len({*shown}) >= 7


def test_alerts_say_what_to_do_and_lead_to_a_page():
    for rule in RULES:
        summary, address = rule["annotations"]["summary"], rule["annotations"]["runbook_url"]
        page, anchor = re.fullmatch(r"http://{{ \$labels.instance }}/(docs/\S+)\.html#(\S+)", address).groups()
        assert ": " in summary and anchor in anchors((ROOT / f"{page}.md").read_text()), rule["alert"]


def test_each_alert_is_tested_both_ways():
    quiet, *firing = (test["alert_rule_test"] for test in TESTS)
    alerts = [rule["alert"] for rule in RULES]
    assert [each["alertname"] for each in quiet] == alerts and not any(each["exp_alerts"] for each in quiet)
    assert [each["alertname"] for (each,) in firing] == alerts and all(each["exp_alerts"] for (each,) in firing)


def test_compose_starts_both_with_the_files_of_this_folder():
    checker = Path(sys.executable).with_name("check-jsonschema")
    command = [checker, "--builtin-schema", "vendor.compose-spec", MONITORING / "compose.yaml"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stdout
    assert all(re.fullmatch(r"\w+/\w+:v?\d+\.\d+\.\d+", each["image"]) for each in COMPOSE.values())
    mounted = {each.split(":")[0]: each.split(":")[1] for service in COMPOSE.values() for each in service["volumes"]}
    assert all((MONITORING / source).exists() for source in mounted if source.startswith("."))
    provider = _yaml("grafana/provisioning/dashboards/edgeflow.yaml")["providers"][0]
    assert str(Path(mounted["./grafana/edgeflow.json"]).parent) == provider["options"]["path"]
    source = _yaml("grafana/provisioning/datasources/prometheus.yaml")["datasources"][0]
    assert f"--web.listen-address={source['url'].removeprefix('http://')}" in COMPOSE["prometheus"]["command"]
    folder = Path(mounted["./prometheus.yml"]).parent
    rules = yaml.safe_load(PROMETHEUS)["rule_files"]
    assert {str(folder / each) for each in rules} <= {*mounted.values()}


def test_the_scrape_of_a_service_with_tokens_is_there_to_uncomment():
    secured = yaml.safe_load(re.sub(r"^    # (?=\w+: )", "    ", PROMETHEUS, flags=re.MULTILINE))["scrape_configs"][0]
    assert secured["scheme"] == "https" and secured["authorization"]["credentials_file"]
    assert yaml.safe_load(PROMETHEUS)["scrape_configs"][0]["static_configs"] == secured["static_configs"]


def _yaml(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((MONITORING / name).read_text())
    return content
