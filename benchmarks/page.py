"""The block of docs/reports/performance.md that is written from latest.json. Pure."""

from collections.abc import Collection, Mapping
from typing import Any

from benchmarks.goals import NOT_MEASURED, TITLES

BEGIN, END = "<!-- written by python -m benchmarks: begin -->", "<!-- written by python -m benchmarks: end -->"
_WORDS = {True: "yes", False: "**no**"}
_ROWS_HEAD = ["| # | value | measured | goal | reached |", "|---|---|---|---|---|"]
_ARMS_HEAD = [
    "| arm | rows/s | seconds | least to most | deviation | processor s | peak MB | rounds |",
    "|---|---|---|---|---|---|---|---|",
]


def with_block(page: str, text: str) -> str:
    """The page with another text between its two markers. Raises ValueError for a page without them."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        message = f"the page lacks a marker; expected {BEGIN} and then {END}"
        raise ValueError(message)
    return f"{head}{BEGIN}\n\n{text.strip()}\n\n{END}{tail}"


def block(content: Mapping[str, Any], pictures: Collection[str] = ()) -> str:
    """The table of verdicts, and under it each row's curves and arms. `pictures`: those that there are."""
    lines = list(_ROWS_HEAD)
    for entry in content["rows"]:
        if entry["id"] in TITLES:
            lines += _verdict_lines(entry)
    for entry in content["rows"]:
        lines += [f"\n![{entry['id']}: {name}]({name}.svg)" for name in entry.get("curves", ()) if name in pictures]
        for contest in entry.get("contests", ()):
            lines += _contest_lines(entry, contest)
    return "\n".join(lines)


def _verdict_lines(entry: Mapping[str, Any]) -> list[str]:
    lines = []
    for goal in entry["goals"]:
        measured = "" if goal["measured"] is None else f"{goal['measured']:,.3g}"
        reached = _WORDS.get(goal["reached"], f"{NOT_MEASURED}: {goal['reason']}")
        lines.append(f"| {entry['id']} | {goal['value']} | {measured} | {goal['goal']} | {reached} |")
    return lines


def _contest_lines(entry: Mapping[str, Any], contest: Mapping[str, Any]) -> list[str]:
    run = entry["run"]
    versions = ", ".join(f"{name} {found}" for name, found in run["versions"].items() if found)
    parameters = ", ".join(f"{value:,} {name}" for name, value in contest["parameters"].items())
    machine = f"{run['cores']} cores, load before it {run['load_before']:.1f}"
    taken = f"{run['at'][:10]}, {run['scale']}, {machine}, seed {run['seed']}; {versions}."
    lines = ["", f"### {entry['id']}: {contest['name']}", "", f"{parameters}. {taken}", "", *_ARMS_HEAD]
    for name, arm in contest["arms"].items():
        wall, processor = arm["wall_seconds"], arm["processor_seconds"]["median"]
        peaks = ", ".join(f"{owner} {peak / 1e6:,.0f}" for owner, peak in arm["peak_bytes"].items())
        lines.append(
            f"| {name} | {arm['rows_per_second']:,.0f} | {wall['median']:.3g} | {wall['least']:.3g} to"
            f" {wall['most']:.3g} | {wall['deviation']:.2g} | {processor:.3g} | {peaks} | {arm['rounds']} |"
        )
    return [*lines, *(f"| {name} | no figure: {why} | | | | | | |" for name, why in contest["refused"].items())]
