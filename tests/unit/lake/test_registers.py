"""Columns are one register exactly if claim and lake always have them at one version."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.lake.registers import LACKED, LAPSED, Register, joint_columns

NAMES = ("a", "b", "c", "d")
VERSIONS = ("1", "2", f"{LAPSED}1", f"{LACKED}1")
STATES = st.lists(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VERSIONS)), max_size=5)


@given(apart=st.sets(st.sampled_from(NAMES)), states=STATES)
def test_columns_are_together_if_their_versions_are_equal_in_each_row(
    apart: AbstractSet[str], states: Sequence[Mapping[str, str]]
) -> None:
    found = joint_columns(NAMES, apart, states)
    assert sorted(name for names in found for name in names) == sorted(NAMES), "each column is in one register"
    register_of = {name: names for names in found for name in names}
    lacked = {name for state in states for name, version in state.items() if version.startswith(LACKED)}
    for one in NAMES:
        for other in NAMES:
            are_equal = all(state.get(one) == state.get(other) for state in states)
            is_alone = {one, other} & (apart | lacked)
            together = one == other or (are_equal and not is_alone)
            assert (register_of[one] == register_of[other]) == together


@pytest.mark.parametrize(
    ("names", "value", "columns"),
    [
        (("a",), "lake.`a`", ["v AS `a`"]),
        (("a", "b`"), "struct(lake.`a` AS value_0, lake.`b``` AS value_1)", ["v.value_0 AS `a`", "v.value_1 AS `b```"]),
    ],
)
def test_the_value_of_several_columns_is_a_struct(names: tuple[str, ...], value: str, columns: list[str]) -> None:
    register = Register(3, names)
    assert register.value("lake.") == value
    assert register.columns("v") == columns
