"""The reference for history tables: the visible rows after each event of the sorted log, one after the other."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from tests.support.reference.model import Event, Id, Table, apply_events, visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A span of versions in which a row was visible with the same values. `end` is None while it goes on."""

    version: str
    end: str | None
    values: tuple[tuple[str, object], ...]


def periods_of(events: Iterable[Event], *, columns: tuple[str, ...]) -> dict[Id, list[Period]]:
    """By id, oldest first. `columns`: those beside the id."""
    table: Table = {}
    found = defaultdict[Id, list[Period]](list)
    shown: dict[Id, tuple[tuple[str, object], ...]] = {}
    for version, together in groupby(sorted(events, key=lambda each: each.version), key=lambda each: each.version):
        table = apply_events(table, together, columns=columns)
        now = {id_: tuple((name, row.values.get(name)) for name in columns) for id_, row in visible(table).items()}
        for id_ in shown.keys() | now.keys():
            if shown.get(id_) != now.get(id_):
                if id_ in shown:
                    found[id_][-1] = replace(found[id_][-1], end=version)
                if id_ in now:
                    found[id_].append(Period(version=version, end=None, values=now[id_]))
        shown = now
    return dict(found)
