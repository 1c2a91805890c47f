"""What became of every fault: site x fault -> outcome, kept while the tests run and written as one page at the end."""

import platform
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

RED = "RED"
_HEAD = """# What became of every fault

Written by `make chaos` on {when:%Y-%m-%d} at {when:%H:%M} UTC, {minutes:.0f} minutes on {cores} cores ({machine}),
seed {seed}. {cells} cells, {faults} faults, {red} of the cells red. Slowest recovery: {slowest}.

`make chaos` writes this page again; it fails when a cell is red. `CDC_CHAOS_SEED={seed} make chaos` takes the same
choices where a test chooses at random; what two processes do at the same time is the machine's choice, so times differ,
and a race may fall otherwise. A cell says what was found after the fault and the recovery, how often the fault was
made, and the slowest recovery: from the fault until whoever comes next has everything in the lake and the comparison
may begin. A fault that no table names was not made.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    site: str
    fault: str
    outcome: str
    recovery: timedelta | None

    @property
    def section(self) -> str:
        return self.site.partition(": ")[0] if ": " in self.site else ""

    @property
    def is_red(self) -> bool:
        return self.outcome.startswith(RED)


@dataclass(slots=True)
class Report:
    """A site is `section: place`; each section becomes a table with a row per place and a column per fault."""

    cells: list[Cell] = field(default_factory=list)

    def record(self, site: str, fault: str, outcome: str, recovery: timedelta | None = None) -> None:
        """`outcome`: what was found after the recovery, in few words. One that begins with RED fails the run."""
        self.cells.append(Cell(site=site, fault=fault, outcome=outcome, recovery=recovery))

    @contextmanager
    def red_unless_done(self, site: str, fault: str) -> Iterator[None]:
        """Whatever ends the block early is a red cell, and goes on to end the test."""
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self.record(site, fault, f"{RED}: the test's output says why")

    @property
    def red(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.is_red]

    def page(self, *, seed: int, began: datetime, ended: datetime, cores: int) -> str:
        recoveries = [cell.recovery for cell in self.cells if cell.recovery is not None]
        head = _HEAD.format(
            when=began,
            minutes=(ended - began) / timedelta(minutes=1),
            cores=cores,
            machine=f"{platform.system()} {platform.machine()}",
            seed=seed,
            cells=len({(cell.site, cell.fault) for cell in self.cells}),
            faults=len(self.cells),
            red=len({(cell.site, cell.fault) for cell in self.red}),
            slowest=_seconds(max(recoveries)) if recoveries else "none measured",
        )
        sections: dict[str, list[Cell]] = defaultdict(list)
        for cell in self.cells:
            sections[cell.section].append(cell)
        return "\n".join([head, *(_table(name, cells) for name, cells in sections.items())])


def _table(section: str, cells: Sequence[Cell]) -> str:
    faults = list(dict.fromkeys(cell.fault for cell in cells))
    found: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        found[cell.site, cell.fault].append(cell)
    rows = [
        "| "
        + " | ".join(
            [f"`{site.partition(': ')[2] or site}`", *(_words(found.get((site, fault), [])) for fault in faults)]
        )
        + " |"
        for site in dict.fromkeys(cell.site for cell in cells)
    ]
    head = ["| site | " + " | ".join(faults) + " |", "|---" * (len(faults) + 1) + "|"]
    return "\n".join([*([f"## {section}", ""] if section else []), *head, *rows, ""])


def _words(cells: Sequence[Cell]) -> str:
    if not cells:
        return ""
    outcomes = dict.fromkeys(cell.outcome.replace("|", "/").replace("\n", " ") for cell in cells)
    times = f" ({len(cells)} times)" if len(cells) > 1 else ""
    recoveries = [cell.recovery for cell in cells if cell.recovery is not None]
    return "; ".join(outcomes) + times + (f", {_seconds(max(recoveries))}" if recoveries else "")


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():.1f} s"
