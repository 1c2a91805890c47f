"""What all surveys of Debezium's events without a database of their own have in common."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import msgspec
import structlog

from cdc_pipeline.errors import SettingsError, SourceError, TableStale
from cdc_pipeline.record import PARTITION_NAME, Column, TableName, TableSchema, encode_position
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.known import FoundTable, KnownTable, PartitionProgress
from cdc_pipeline.types import changed_types, widest

log = structlog.get_logger()

_NO_ID = 0


@dataclass(frozen=True, kw_only=True)
class EventsSurvey:
    """The part of `SourceSurvey` that needs no stream. `listed`: the tables of pipeline.yml."""

    listed: tuple[TableSettings, ...]
    is_successor = False
    mendable = statements = ()

    @property
    def first_offset(self) -> str:
        """The offset of the very first event."""
        return encode_position(0)

    @property
    def resting(self) -> Mapping[int, SourceError]:
        return {}

    def check_ready(self) -> None:
        """Raises nothing: the survey finds only what can be read."""

    def identities(self, table: TableName) -> Mapping[str, str]:
        """Returns by name the identity of each stream or topic of the table; nothing where names say it all."""
        del table
        return {}

    def created_again(self, table: KnownTable | None) -> str | None:
        """Returns the name of a stream or topic that is another one than when the table was registered.

        None if there is none. Names that the registration does not have are passed over.
        """
        if table is None or not table.published_as:
            return None
        before = msgspec.json.decode(table.published_as, type=dict[str, str])
        now = self.identities(table.name)
        return next((name for name, identity in now.items() if before.get(name, identity) != identity), None)

    def found_tables(self, is_live: Callable[[TableName], bool]) -> tuple[FoundTable, ...]:
        """Returns the listed tables that can be read."""
        return tuple(
            FoundTable(
                name=table.table,
                source_id=_NO_ID,
                key=table.id,
                schema=declared_schema(table),
                published_as=_as_text(self.identities(table.table)),
            )
            for table in self.listed
            if is_live(table.table)
        )


def _as_text(identities: Mapping[str, str]) -> str:
    return msgspec.json.encode(identities).decode() if identities else ""


def numbered_partitions(progress: Mapping[int, PartitionProgress], names: Iterable[str]) -> Mapping[int, str]:
    """Returns the name of each stream partition: the registered ones, and new ones of `names` with the next numbers."""
    known = {number: place.last_position.get(PARTITION_NAME, "") for number, place in progress.items()}
    taken = set(known.values())
    new = [name for name in names if name not in taken]
    return known | dict(zip(count(max(known, default=-1) + 1), new, strict=False))


def read_together(name: str, tables: Sequence[TableName], registered: Collection[TableName]) -> tuple[TableName, ...]:
    """Returns `tables`, those with events in the partition `name`; none if none of them is registered.

    Such a partition stays at its offset until `cdc setup-source` registers its tables, so nothing is passed over.
    Raises SourceError if only some of them are registered.
    """
    missing = [str(table) for table in tables if table not in registered]
    if missing and len(missing) < len(tables):
        raise SourceError(
            f"{', '.join(missing)} is not registered, and {name} has events of registered tables too",
            expected="every table of pipeline.yml, since events that are passed over do not come again",
            remedy="run cdc setup-source",
        )
    return () if missing else tuple(tables)


def stale_tables(
    registered: Mapping[TableName, KnownTable],
    gaps: Callable[[TableName], Iterator[str]],
    *,
    expected: str,
    remedy: str,
) -> dict[TableName, TableStale]:
    """Returns the registered tables that are stale already, and those for which `gaps` says what is missing."""
    found = {}
    for name, table in registered.items():
        why = next(gaps(name), None)
        if table.published_as is None:
            found[name] = TableStale(table.reason, table=name, remedy=remedy)
        elif why is not None:
            found[name] = TableStale(why, table=name, expected=expected, remedy=remedy)
    return found


def warn_of_late_table(table: TableSettings, *, kind: str, name: str, again: str) -> None:
    """Warns of a new table: what has its events was read already, and those that were in it are passed over.

    `kind`: topic, stream or folder, and its `name`. `again`: how the rows come once more.
    """
    warning = f"the table begins in the middle of its {kind}"
    log.warning(
        warning,
        table=table.name,
        found=f"{name}, which was read without it so far",
        expected=f"a {kind} whose events of the table all come later",
        remedy=f"{again}, or begin it with exported files",
    )


def declared_schema(table: TableSettings) -> TableSchema | None:
    """Returns the schema that pipeline.yml declares; None if it leaves the id or an id column to the events."""
    if not table.id or not set(table.id) <= table.columns.keys():
        return None
    columns = tuple(Column(name=name, type=type_) for name, type_ in table.columns.items())
    return TableSchema(columns=columns, key=table.id)


def refuse_changed_types(table: TableSettings, known: KnownTable | None) -> None:
    """Raises SettingsError if pipeline.yml changed the type of a column.

    The lake cannot change the types with which it began, so it would refuse every later slice.
    """
    if known is None:
        return
    declared = tuple(Column(name=name, type=type_) for name, type_ in table.columns.items())
    for before, column in changed_types(widest(known.columns), declared):
        raise SettingsError(
            f"{table.name} has the column {column.name} as {column.type} in pipeline.yml",
            expected=f"{before.type}, as it began: the lake keeps its types",
            remedy="set it back; for another type, read the events again under another name and lake",
        )
