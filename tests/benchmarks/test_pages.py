"""The benchmark pages follow from the result files, every file is listed, and its commit is in the repository."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from benchmarks.pages import __main__ as command
from benchmarks.pages.catalogue import ENTRIES
from benchmarks.pages.files import RESULTS, results, unlisted
from benchmarks.pages.prose import unexplained
from benchmarks.pages.render import PAGES, TEMPLATES, rendered, written
from benchmarks.pages.words import between, figure_table, label, number, quantity, short, target


@pytest.fixture(scope="module", name="pages")
def pages_of_the_files() -> dict[str, str]:
    return rendered()


def test_the_pages_are_those_of_the_result_files(pages):
    old = written()
    differing = [name for name in sorted({*pages, *old}) if pages.get(name) != old.get(name)]
    assert not differing, "run `python -m benchmarks.pages`"


def test_every_result_file_is_listed_and_shown(pages):
    assert not unlisted(), "add them to benchmarks/pages/catalogue.py, or delete them"
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    for result in results().values():
        assert f"[{result.path.name}]" in pages[f"{result.page}.md"], result.name


def test_pictures_and_links_of_the_pages_exist(pages):
    for name, page in pages.items():
        for link in re.findall(r"\]\(([^)#:]+)\)", page):
            if "benchmarks/" in link or "/" not in link:
                assert (PAGES / name).parent.joinpath(link).is_file(), f"{name}: {link}"


def test_every_benchmark_is_a_module_or_a_script():
    for entry in ENTRIES:
        module = re.match(r"python -m ([\w.]+)", entry.command)
        if module:
            path = RESULTS.parents[1].joinpath(*module[1].split("."))
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), entry.name
        else:
            program = entry.command.split()[0]
            assert program == "edgeflow" or (RESULTS.parents[1] / program).is_file(), entry.name


def test_every_commit_is_an_ancestor_of_this_one():
    if _git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("a shallow clone, or no git: the history is not here")
    for result in results().values():
        assert _git("merge-base", "--is-ancestor", result.commit, "HEAD") is not None, (
            f"{result.path.name}: nobody can check out {result.commit}; measure it again"
        )


def test_the_command_writes_and_compares(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "PAGES", tmp_path)
    monkeypatch.setattr(command, "rendered", lambda: {"new.md": "a figure\n"})
    monkeypatch.setattr(command, "written", lambda: {path.name: path.read_text() for path in tmp_path.iterdir()})
    (tmp_path / "old.md").write_text("gone\n")
    monkeypatch.setattr(sys, "argv", ["pages", "--check"])
    assert command.main() == 1
    shown = capsys.readouterr().out
    assert "+a figure" in shown and "-gone" in shown
    monkeypatch.setattr(sys, "argv", ["pages"])
    assert command.main() == 0 and [path.name for path in tmp_path.iterdir()] == ["new.md"]
    monkeypatch.setattr(sys, "argv", ["pages", "--check"])
    assert command.main() == 0 and not capsys.readouterr().out


def test_templates_take_their_figures_from_files():
    """A measured figure in a template is computed; conditions and targets are written."""
    for path in TEMPLATES.glob("*.md.jinja"):
        text = re.sub(r"\{[{%].*?[%}]\}", "", path.read_text(), flags=re.DOTALL)
        assert not [str(found) for found in unexplained(text)], path.name


@pytest.mark.parametrize(
    ("value", "written"), [(0.0004, "0.00"), (12.344, "12.3"), (186936, "186,936"), (118.25, "118"), (-0.119, "-0.12")]
)
def test_three_digits(value, written):
    assert short(value) == written


def test_words():
    assert number(-0.0004, 2) == "0.00" and number(22384) == "22,384"
    assert between([0.885, 0.958]) == "88 to 96 %"
    assert quantity(0.0003, "s") == "0.30 ms" and quantity(3, "") == "3"
    assert target(2.0000000000000018) == "2" and target(1.5142282) == "1.51"
    assert label("front's growth") == "control's growth" and label("chat front: kills") == "chat front: kills"


def test_figures_of_a_fault_test():
    rows = [
        {"what": "late", "value": 5.0, "unit": "ms", "bar": 3.0, "met": False},
        {"what": "lost", "value": 0, "unit": "", "bar": 0, "met": True},
        {"what": "asked", "value": 1000, "unit": "", "bar": None, "met": True},
    ]
    table = figure_table(rows)
    assert "| late | 5 ms | 3 ms, **missed** |" in table and "Zero, as required: lost." in table
    assert "asked" not in table and "| asked | 1,000 |  |" in figure_table(rows, "ask")


def _git(*arguments: str) -> str | None:
    """The output of git; None where it fails."""
    done = subprocess.run(["git", "-C", RESULTS, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
