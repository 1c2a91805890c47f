"""docs/floor-plan.md lists the packages as they are."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)
PARENTS = ("cdc_pipeline", "snapshot", "cdc_pipeline/metadata_store")
VERBS = ["stream_to_slices", "slice_to_lake", "snapshot_to_staging", "staging_to_lake"]


def listed(parent: str) -> list[tuple[str, str]]:
    """(package, what it is) of one parent, in the order of the page."""
    page = (ROOT / "docs" / "floor-plan.md").read_text(encoding="utf-8")
    return ROW.findall(page.split(f"\n## {parent}/\n")[1].split("\n## ")[0])


def packages(parent: str) -> set[str]:
    folder = ROOT / parent
    modules = {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}
    return modules | {path.parent.name for path in folder.glob("*/__init__.py")}


def layers_of(parent: str) -> list[set[str]]:
    """Layers of the contract, uppermost first."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = document["tool"]["importlinter"]["contracts"]
    (layers,) = [found["layers"] for found in contracts if found.get("containers") == [parent.replace("/", ".")]]
    return [set(re.findall(r"\w+", layer)) for layer in layers]


@pytest.mark.parametrize("parent", PARENTS)
def test_every_package_is_listed_once_and_nothing_else(parent: str) -> None:
    names = [name for name, _ in listed(parent)]
    assert sorted(names) == sorted(packages(parent))


@pytest.mark.parametrize("parent", PARENTS)
def test_packages_are_listed_layer_by_layer_as_the_contract_has_them(parent: str) -> None:
    level = {package: number for number, layer in enumerate(layers_of(parent)) for package in layer}
    places = [level[name] for name, _ in listed(parent)]
    assert places == sorted(places)


def test_each_verb_is_followed_through_at_most_twelve_files_that_exist() -> None:
    page = (ROOT / "docs" / "floor-plan.md").read_text(encoding="utf-8")
    followed = ROW.findall(page.split("\n## Following a verb\n")[1].split("\n## ")[0])
    assert [verb for verb, _ in followed] == VERBS
    for verb, row in followed:
        files = re.findall(r"`([^`]+)`", row)
        assert len(files) <= 12, verb
        assert [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("parent", PARENTS)
def test_every_package_says_in_its_first_line_what_it_is(parent: str) -> None:
    for path in sorted((ROOT / parent).rglob("*.py")):
        if "migrations" not in path.parts:
            assert re.match(r'r?"""\S.+', path.read_text(encoding="utf-8")), path
