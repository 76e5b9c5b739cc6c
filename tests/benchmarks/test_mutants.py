"""Faults that the tests must find: each still has its place in the code."""

from __future__ import annotations

from benchmarks.mutants import MUTANTS, PACKAGE, ROOT


def test_each_fault_replaces_one_piece_of_code_and_has_its_tests():
    package = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert [each.old for each in MUTANTS if package.count(each.old) != 1] == []
    assert [each.tests for each in MUTANTS if not (ROOT / each.tests).is_file()] == []
