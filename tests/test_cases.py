"""What runs by day covers what its name promises."""

from __future__ import annotations

from itertools import combinations, product

from tests.cases import pairs_by_day


def test_any_two_values_of_two_parameters_meet_by_day():
    parameters = ["abc", [1, 2], [True, None], "wxyz"]
    cases = pairs_by_day(*parameters)
    assert [case.values for case in cases] == list(product(*parameters))
    by_day = [case.values for case in cases if not case.marks]
    assert len(by_day) == 12, "no fewer can hold the pairs of the first and the last"
    for one, other in combinations(range(4), 2):
        assert {(case[one], case[other]) for case in by_day} == {*product(parameters[one], parameters[other])}
    assert [case.id for case in cases[:2]] == ["a-1-True-w", "a-1-True-x"]
