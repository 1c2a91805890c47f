"""A table without an id is refused where pipeline.yml asks for what only an id makes possible."""

from dataclasses import replace
from typing import Any

import pytest

from cdc_pipeline.errors import SourceError, UsageError
from cdc_pipeline.lake.columns import check_keyless as check_lake_table
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.table_checks import check_keyless
from tests.support.lake import PEOPLE, table_of

ASKED = [
    ({"history": True}, "its history is to be kept; .* leave history out of pipeline.yml"),
    ({"deletes": "soft"}, "its deletes are to be soft; .* leave deletes out of pipeline.yml"),
]


@pytest.mark.parametrize(("asked", "error"), ASKED)
def test_a_database_s_table_without_an_id_has_no_history_and_no_soft_deletes(asked: dict[str, Any], error: str) -> None:
    settings = TableSettings.model_validate({"name": "shop.public.bag", **asked})
    check_keyless(settings, ["id"])
    with pytest.raises(SourceError, match=f"bag has no id, and {error}"):
        check_keyless(settings, [])


@pytest.mark.parametrize(("asked", "error"), ASKED)
def test_a_table_whose_events_have_no_key_has_no_history_and_no_soft_deletes(asked: dict[str, Any], error: str) -> None:
    table = table_of(deletes=asked.get("deletes", "hard"), keeps_history=asked.get("history", False))
    check_lake_table(table)
    with pytest.raises(UsageError, match=f"have no key, and {error}"):
        check_lake_table(replace(table, schema=replace(PEOPLE, key=())))


def test_a_table_without_an_id_is_taken_as_it_is() -> None:
    check_keyless(TableSettings.model_validate({"name": "shop.public.bag"}), [])
    check_lake_table(table_of(replace(PEOPLE, key=())))
