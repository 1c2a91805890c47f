"""The pages of the documentation as tests read them: their code blocks, and which test runs the commands of a page."""

import re

from cdc_pipeline.launcher.project import PROJECT

DOCS = PROJECT / "docs"
README = "README.md"
RUN_ELSEWHERE = {
    "docs/tutorial.md": "tests/acceptance/test_tutorial.py",
    "docs/how-to/debezium-files.md": "tests/acceptance/test_quick_start.py",
    "docs/how-to/lake-on-s3.md": "tests/acceptance/test_object_stores.py",
    "docs/how-to/spark-cluster.md": "tests/acceptance/test_spark_cluster.py",
}
"""Page -> the test that runs its commands with a pipeline of its own; all other commands run on the demo's."""


def pages() -> list[str]:
    """Paths of all pages, the README first, relative to the project."""
    return [README, *(str(path.relative_to(PROJECT)) for path in sorted(DOCS.rglob("*.md")))]


def text_of(page: str) -> str:
    """`page`: relative to the project, such as `docs/index.md`."""
    return (PROJECT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str, heading: str = "") -> list[str]:
    """The page's fenced blocks of one language; with a heading (`## What`), those behind it."""
    text = text_of(page)
    return re.findall(rf"^```{language}\n(.*?)^```", text[text.index(heading) :], re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[str]:
    """The lines of its `sh` blocks. A test runs each of them; commands that no test runs stand in `text` blocks."""
    return [line for block in blocks(page, "sh") for line in block.splitlines() if line]


def pages_for_the_demo() -> list[str]:
    return [page for page in pages() if commands(page) and page not in RUN_ELSEWHERE]


def documented(section: str) -> dict[str, list[str]]:
    """What comes in -> the words that it gives, of one section of the page of bad input."""
    text = text_of("docs/reference/bad-input.md").split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [re.split(r" \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("|")][2:]
    return {cells[0]: re.findall(r"`([^`]+)`", cells[1]) for cells in rows}
