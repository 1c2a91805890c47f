"""Names and values of the data stay names and values."""

import pytest

from cdc_pipeline.errors import UsageError
from cdc_pipeline.lake.quoting import identifier, literal


def test_back_ticks_in_names_are_doubled() -> None:
    assert identifier("a`b.c") == "`a``b.c`"


def test_quotes_and_backslashes_in_values_are_escaped() -> None:
    assert literal("it's \\") == "'it\\'s \\\\'"
    assert literal(-5) == "-5"


def test_a_truth_value_is_no_key_value() -> None:
    with pytest.raises(UsageError, match="True is no key value"):
        literal(value=True)
