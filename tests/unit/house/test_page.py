"""The page of the house: short modules and functions, one class for a name, tests that neither wait nor patch."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT = ("cdc_pipeline", "snapshot", "dags", "plugins")
FOLDERS = (*PRODUCT, "tests", "benchmarks", "docs/model")
MOST_LINES, MOST_LINES_OF_A_DAG, MOST_LINES_OF_A_FUNCTION = 300, 60, 40
FORBIDDEN_IN_TESTS = re.compile(
    r"\b(?:time|asyncio|Thread)\.sleep\(|\bpg_sleep\b|'sleep'|^from time import .*\bsleep\b"
    r"|\bunittest\b.*\bmock\b|\bmonkeypatch\b|\bmocker\b",
    re.MULTILINE,
)


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def modules(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if "migrations" not in path.parts]


def definitions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Functions and classes of a module, and those inside them. Looks at statements alone, which is quick."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement
        for field in ("body", "orelse", "finalbody"):
            yield from definitions(getattr(statement, field, []))


def test_modules_and_functions_are_short() -> None:
    long = []
    for path in modules(*FOLDERS):
        lines = text_of(path).count("\n")
        most = MOST_LINES_OF_A_DAG if path.is_relative_to(ROOT / "dags") else MOST_LINES
        long += [f"{path.relative_to(ROOT)}: {lines} lines, at most {most}"] if lines > most else []
        for found in definitions(ast.parse(text_of(path)).body):
            lines = (found.end_lineno or 0) - found.lineno + 1
            if not isinstance(found, ast.ClassDef) and lines > MOST_LINES_OF_A_FUNCTION:
                long.append(
                    f"{path.relative_to(ROOT)}, {found.name}: {lines} lines, at most {MOST_LINES_OF_A_FUNCTION}"
                )
    assert long == []


def test_public_class_names_are_unique() -> None:
    names = Counter(
        found.name
        for path in modules(*PRODUCT)
        for found in definitions(ast.parse(text_of(path)).body)
        if isinstance(found, ast.ClassDef) and not found.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_types_are_checked_without_exception() -> None:
    ignored = [path for path in modules(*FOLDERS) if "type" + ": ignore" in text_of(path)]
    assert ignored == []


def test_tests_neither_wait_nor_patch() -> None:
    found = {
        str(path.relative_to(ROOT)): hits
        for path in modules("tests")
        if path != Path(__file__) and (hits := FORBIDDEN_IN_TESTS.findall(text_of(path)))
    }
    assert found == {}
