"""Registers: columns of a lake table whose values always have one version in common.

Each column can be a register of its own. Few registers of many columns cost Spark far less to plan: what it does for a
register takes ten expressions, and the time of its optimizer grows faster than their number.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cdc_pipeline.lake.quoting import identifier

LAPSED, LACKED = "!", "+"
"""Marks of a column's version in STATE; see `lake_rows_sql`."""


@dataclass(frozen=True, slots=True)
class Register:
    """The SQL refers to a register by its number, so that no column's name can clash."""

    number: int
    names: tuple[str, ...]

    @property
    def first(self) -> str:
        return self.names[0]

    @property
    def is_alone(self) -> bool:
        return len(self.names) == 1

    def value(self, row: str = "") -> str:
        """Returns SQL for the register's value in a row: that of the column, or a struct of several."""
        if self.is_alone:
            return f"{row}{identifier(self.first)}"
        return f"struct({', '.join(f'{row}{identifier(name)} AS value_{n}' for n, name in enumerate(self.names))})"

    def columns(self, value: str) -> list[str]:
        """Returns SQL for each column of a value, under the column's name."""
        if self.is_alone:
            return [f"{value} AS {identifier(self.first)}"]
        return [f"{value}.value_{number} AS {identifier(name)}" for number, name in enumerate(self.names)]


def joint_columns(
    names: Sequence[str], apart: AbstractSet[str], states: Iterable[Mapping[str, str]]
) -> tuple[tuple[str, ...], ...]:
    """Returns the columns of each register.

    `apart`: columns that an event of the claim has no value for; each is a register of its own. `states`: of each row
    of the lake that has one, column -> version. Columns are together if their versions are equal in each of them, and
    if none lacks the column.
    """
    classes, alone = dict.fromkeys(names, 0), set(apart)
    known = set[frozenset[frozenset[str]]]()
    for state in states:
        by_version = defaultdict[str, set[str]](set)
        for name, version in state.items():
            by_version[version].add(name)
        for version, lacked in by_version.items():
            if version.startswith(LACKED):
                alone |= lacked
        split = frozenset(map(frozenset, by_version.values()))
        if split not in known:
            known.add(split)
            classes = _split(classes, split)
    together = defaultdict[int, list[str]](list)
    for name in names:
        if name not in alone:
            together[classes[name]].append(name)
    return (*((name,) for name in names if name in alone), *map(tuple, together.values()))


def _split(classes: Mapping[str, int], split: Iterable[Iterable[str]]) -> dict[str, int]:
    parts = {name: number for number, part in enumerate(split) for name in part}
    pairs = {name: (class_, parts.get(name)) for name, class_ in classes.items()}
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs.values()))}
    return {name: numbers[pair] for name, pair in pairs.items()}
