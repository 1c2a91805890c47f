"""The tree of errors is the one that its page draws, and each message says what was found, expected and to be done."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_pipeline import errors
from cdc_pipeline.errors import CdcError

ROOT = Path(__file__).parents[3]
DRAWN = re.compile(r"^(?P<indent>[│ ├└─]*)(?P<name>[A-Z]\w+)(?: {2,}(?P<meaning>\S.*))?$", re.MULTILINE)
LEVEL = 4


def drawn_tree() -> dict[str, str]:
    """Name -> name of the error above it, as the module's docstring draws it."""
    above: dict[str, str] = {}
    line: list[str] = []
    for match in DRAWN.finditer(errors.__doc__ or ""):
        depth = len(match["indent"]) // LEVEL
        del line[depth:]
        if line:
            above[match["name"]] = line[-1]
        line.append(match["name"])
    return above


def error_classes() -> dict[str, type[CdcError]]:
    return {
        name: found
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, CdcError) and found is not CdcError
    }


def raised_errors() -> Iterator[tuple[str, set[str]]]:
    """Place of each error that the code makes, and which phrases it gives."""
    names = {"CdcError", *error_classes()}
    for folder in ("cdc_pipeline", "snapshot"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                    given = {keyword.arg or "" for keyword in node.keywords}
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", given


def test_every_error_is_drawn_in_the_tree_where_it_belongs() -> None:
    assert drawn_tree() == {name: found.__bases__[0].__name__ for name, found in error_classes().items()}


def test_the_message_joins_what_was_found_what_was_expected_and_what_to_do() -> None:
    error = CdcError("the slot is gone", expected="a slot", remedy="run cdc setup-source")
    assert str(error) == "the slot is gone; expected a slot; run cdc setup-source"
    assert (error.found, error.expected, error.remedy) == ("the slot is gone", "a slot", "run cdc setup-source")
    assert str(CdcError("the slot is gone")) == "the slot is gone"


def test_every_error_can_be_stored_and_printed_whatever_it_quotes() -> None:
    assert str(CdcError("name is 'a\0b'", remedy="rename caf\udce9")) == r"name is 'a\x00b'; rename caf\udce9"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no server at postgresql://cdc:s3cret@db/shop", "no server at postgresql://cdc:***@db/shop"),
        ("postgresql://cdc:p@ss/w:rd@db:5432/shop is away", "postgresql://cdc:***@db:5432/shop is away"),
        ("host=db password=s3cret user=cdc", "host=db password=*** user=cdc"),
        ("host=db password='a b' user=cdc", "host=db password=*** user=cdc"),
        ("sc://spark:15002/;token=abc;use_ssl=true", "sc://spark:15002/;token=***;use_ssl=true"),
        ('{"aws_secret_access_key": "abc", "name": "x"}', '{"aws_secret_access_key": ***, "name": "x"}'),
        ("PASSWORD: hunter2", "PASSWORD: ***"),
        ("correct user and password in source.url", "correct user and password in source.url"),
        ("give it as sc://host:port/;token=...", "give it as sc://host:port/;token=..."),
        ("the table shop.public.orders at 10:30:00Z", "the table shop.public.orders at 10:30:00Z"),
    ],
)
def test_a_secret_is_shown_in_no_part_of_an_error(text: str, shown: str) -> None:
    error = CdcError(text, expected=text, remedy=text)
    assert (error.found, error.expected, error.remedy) == (shown, shown, shown)
    assert str(error) == f"{shown}; expected {shown}; {shown}"


@pytest.mark.parametrize("found", error_classes().values(), ids=lambda found: found.__name__)
def test_every_error_has_an_exit_code_of_the_documented_ones(found: type[CdcError]) -> None:
    assert found.exit_code in (1, 2, 4)


def test_wrong_words_end_with_two_and_what_is_left_to_others_or_for_later_with_four() -> None:
    assert {name: found.exit_code for name, found in error_classes().items() if found.exit_code != 1} == {
        "UsageError": 2,
        "SettingsError": 2,
        "LeaseBusy": 4,
        "TablePauses": 4,
    }


def test_only_what_may_mend_itself_is_retried() -> None:
    assert {name for name, found in error_classes().items() if found.retryable} == {
        "SourceAway",
        "SourceBusy",
        "StoreAway",
        "ObjectStoreAway",
        "StreamMoved",
        "LakeError",
        "LakeAway",
    }


def test_an_outage_is_nobodys_fault_and_passes_by_itself() -> None:
    outages = {name for name, found in error_classes().items() if found.outage}
    assert outages == {"SourceAway", "StoreAway", "ObjectStoreAway", "LakeAway"}
    assert all(error_classes()[name].retryable for name in outages)


def test_every_error_that_the_code_raises_says_what_was_expected_or_what_to_do() -> None:
    silent = [place for place, given in raised_errors() if not given & {"expected", "remedy"}]
    assert silent == []
