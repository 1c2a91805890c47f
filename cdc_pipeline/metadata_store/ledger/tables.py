"""Source tables: identity, settings and schemas, and the position at which a stopped table was halted."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, func, select, update
from sqlalchemy.dialects.postgresql import insert

from cdc_pipeline.errors import RegistryError, SourceChanged, StreamMoved, UsageError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import OfStream, as_optional_record, as_record
from cdc_pipeline.metadata_store.leases import Lease, hold_lease
from cdc_pipeline.metadata_store.ledger.cut import schema_identity
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.record import Column, TableName, TableSchema

FIXED_SETTINGS = ("id", "partition_by", "deletes", "exclude_columns")
"""Settings that the lake's files depend on: they change only before the first snapshot, or when a stale table begins
again."""
_TABLE, _SCHEMA = models.source_table, models.table_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """A table to register. Names are unique within a stream, because several pipelines may share one store.

    `settings` is JSON. `table_uuid` and `published_as` are stored only for a table that has none yet.
    """

    name: TableName
    stream: str
    source_oid: int
    settings: Mapping[str, Any]
    table_uuid: UUID
    published_as: str = ""

    def name_columns(self) -> dict[str, str]:
        """The columns that name the table within the store."""
        return {
            "stream": self.stream,
            "database_name": self.name.database,
            "schema_name": self.name.schema,
            "table_name": self.name.table,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables(OfStream):
    """The tables of one stream. `known`: a cache of schemas by table and schema id; a recorded schema never changes."""

    known: dict[tuple[int, str], TableSchema] = field(default_factory=dict, repr=False, compare=False)

    def register_table(self, new: NewTable) -> SourceTable:
        """Registers the table. Idempotent: later settings replace earlier ones.

        FIXED_SETTINGS cannot change here once a snapshot has begun. Raises SourceChanged when another table has the
        name now, RegistryError for a changed fixed setting.
        """
        settings = dict(new.settings)
        with self.database.transaction("table.register") as connection:
            connection.execute(
                insert(_TABLE)
                .values(
                    **new.name_columns(),
                    table_uuid=new.table_uuid,
                    source_oid=new.source_oid,
                    settings=settings,
                    published_as=new.published_as,
                )
                .on_conflict_do_nothing(index_elements=[*new.name_columns()])
            )
            known = read_table(connection, _named(new.name, new.stream), str(new.name), lock=True)
            _check_same(known, new)
            if known.published_as is None and known.state is not TableState.STALE:
                known = _changed(connection, known.table_id, published_as=new.published_as)
            if known.settings != settings:
                known = _changed(connection, known.table_id, settings=settings)
        return known

    def table(self, name: TableName) -> SourceTable:
        """Returns the table. Raises UsageError when it is not registered."""
        with self.database.transaction("table.read") as connection:
            return read_table(connection, _named(name, self.stream), str(name))

    def find(self, name: TableName) -> SourceTable | None:
        """Like `table`; None when it is not registered."""
        with self.database.transaction("table.read") as connection:
            row = connection.execute(select(_TABLE).where(_named(name, self.stream))).one_or_none()
        return as_optional_record(SourceTable, row)

    def table_by_id(self, table_id: int) -> SourceTable:
        """Returns the table with this number. Raises UsageError when there is none."""
        with self.database.transaction("table.read") as connection:
            return read_table(connection, _TABLE.c.table_id == table_id, f"number {table_id}")

    def tables(self) -> tuple[SourceTable, ...]:
        """Returns the stream's tables in the order of their names."""
        order = (_TABLE.c.database_name, _TABLE.c.schema_name, _TABLE.c.table_name)
        with self.database.transaction("table.list") as connection:
            rows = connection.execute(select(_TABLE).where(_TABLE.c.stream == self.stream).order_by(*order)).all()
        return tuple(as_record(SourceTable, row) for row in rows)

    def record_schema(self, table_id: int, schema: TableSchema, *, first_offset: str, is_newest: bool = True) -> str:
        """Records a schema and returns its id. A schema that is known keeps its first offset.

        `is_newest` makes it the table's newest schema. Registration does that by itself for the schemas of slices.
        """
        schema_id = schema_identity(schema)
        with self.database.transaction("schema.record") as connection:
            connection.execute(
                insert(_SCHEMA)
                .values(table_id=table_id, schema_id=schema_id, document=schema.to_json(), first_offset=first_offset)
                .on_conflict_do_nothing()
            )
            if is_newest:
                connection.execute(update(_TABLE).where(_TABLE.c.table_id == table_id).values(schema_id=schema_id))
        return schema_id

    def known_columns(self, table_id: int) -> tuple[Column, ...]:
        """Returns every column that the table ever had, once per schema, oldest schema first and the newest last."""
        return self._columns(_TABLE.c.table_id == table_id).get(table_id, ())

    def columns_of_tables(self) -> dict[int, tuple[Column, ...]]:
        """Returns the same by table id, for every table of the stream."""
        return self._columns(_TABLE.c.stream == self.stream)

    def _columns(self, of_tables: ColumnElement[bool]) -> dict[int, tuple[Column, ...]]:
        is_newest = _SCHEMA.c.schema_id == _TABLE.c.schema_id
        query = select(_SCHEMA.c.table_id, _SCHEMA.c.document, is_newest).join(
            _TABLE, _TABLE.c.table_id == _SCHEMA.c.table_id
        )
        found, newest = defaultdict[int, list[Column]](list), dict[int, tuple[Column, ...]]()
        with self.database.transaction("schema.read") as connection:
            rows = connection.execute(query.where(of_tables).order_by(_SCHEMA.c.first_offset)).all()
        for table_id, document, is_last in rows:
            columns = TableSchema.from_json(document).columns
            found[table_id] += columns
            if is_last:
                newest[table_id] = columns
        return {table_id: (*columns, *newest.get(table_id, ())) for table_id, columns in found.items()}

    def schema(self, table_id: int, schema_id: str) -> TableSchema:
        """Returns the schema. Raises RegistryError for a schema that the store does not have."""
        found = self.known.get((table_id, schema_id))
        if found is None:
            found = self.known[table_id, schema_id] = self._read_schema(table_id, schema_id)
        return found

    def _read_schema(self, table_id: int, schema_id: str) -> TableSchema:
        query = select(_SCHEMA.c.document).where(_SCHEMA.c.table_id == table_id, _SCHEMA.c.schema_id == schema_id)
        with self.database.transaction("schema.read") as connection:
            document = connection.scalar(query)
        if document is None:
            raise RegistryError(
                f"table {table_id} has no schema {schema_id}",
                remedy="the slice that names it belongs to another metadata store",
            )
        return TableSchema.from_json(document)

    def set_shapes(
        self, table_id: int, shapes: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]] | None = None
    ) -> SourceTable:
        """Replaces the shapes that later events of the table may have, oldest first, as read from the catalogue.

        `before`: the shapes that these continue. Raises StreamMoved, without effect, if others are recorded by now.
        """
        with self.database.transaction("table.set_shapes") as connection:
            if before is not None:
                row = read_table(connection, _TABLE.c.table_id == table_id, f"number {table_id}", lock=True)
                if list(row.shape or ()) != list(before):
                    raise StreamMoved(
                        f"another process has recorded changes of {row.name} meanwhile",
                        remedy="try again: what it recorded is read then",
                    )
            return _changed(connection, table_id, shape=list(shapes))

    def end_change(self, table_id: int, generation: int) -> None:
        """Drops the shapes before `generation`, because no later event can have them. Idempotent."""
        with self.database.transaction("table.end_change") as connection:
            row = read_table(connection, _TABLE.c.table_id == table_id, f"number {table_id}", lock=True)
            left = [shape for shape in row.shape or () if shape["generation"] >= generation]
            _changed(connection, table_id, shape=left)

    def begin_repair(self, lease: Lease) -> None:
        """Marks the table as under repair: deletes leave tombstones until the repair is registered or ended.

        Raises StaleEpoch when another owner has the lease.
        """
        self._set_under_repair(lease, is_under_repair=True)

    def end_repair(self, lease: Lease) -> None:
        """Ends a repair that registers nothing. Raises StaleEpoch when another owner has the lease."""
        self._set_under_repair(lease, is_under_repair=False)

    def _set_under_repair(self, lease: Lease, *, is_under_repair: bool) -> None:
        with self.database.transaction("table.repair") as connection:
            hold_lease(connection, lease)
            _changed(connection, lease.table_id, under_repair=is_under_repair)


def read_table(
    connection: Connection, condition: ColumnElement[bool], words: str, *, lock: bool = False
) -> SourceTable:
    query = select(_TABLE).where(condition)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise no_table(words)
    return as_record(SourceTable, row)


def halt(connection: Connection, which: ColumnElement[bool]) -> None:
    """Freezes the lake position of these tables: it no longer rises with what is registered and applied.

    It is frozen at the last cut that read the table, or at the cutoff if that is later. A frozen position stays as it
    is.
    """
    position = func.coalesce(_TABLE.c.halted_at, func.greatest(_TABLE.c.followed_at, _TABLE.c.cutoff_offset))
    connection.execute(update(_TABLE).where(which).values(halted_at=position))


def end_halt(connection: Connection, which: ColumnElement[bool]) -> None:
    """Ends the freeze: the lake position of these tables rises again with what is registered and applied."""
    connection.execute(update(_TABLE).where(which).values(halted_at=None))


def no_table(words: str) -> UsageError:
    return UsageError(
        f"there is no table {words} in the metadata store",
        remedy="list it in pipeline.yml and run cdc setup-source",
    )


def _named(name: TableName, stream: str) -> ColumnElement[bool]:
    return (
        (_TABLE.c.stream == stream)
        & (_TABLE.c.database_name == name.database)
        & (_TABLE.c.schema_name == name.schema)
        & (_TABLE.c.table_name == name.table)
    )


def _changed(connection: Connection, table_id: int, **values: Any) -> SourceTable:
    change = update(_TABLE).where(_TABLE.c.table_id == table_id).values(**values)
    row = connection.execute(change.returning(_TABLE)).one_or_none()
    if row is None:
        raise no_table(f"number {table_id}")
    return as_record(SourceTable, row)


def _check_same(known: SourceTable, new: NewTable) -> None:
    if known.source_oid != new.source_oid:
        raise SourceChanged(
            f"{new.name} is now the table with oid {new.source_oid}",
            expected=f"oid {known.source_oid}",
            remedy="another table has the name now: run cdc snapshot on it",
        )
    changed = [name for name in FIXED_SETTINGS if (known.settings.get(name) or []) != (new.settings.get(name) or [])]
    # a lake that was begun before it recorded them leaves them unknown after a rebuild
    if changed and known.settings and known.state is not TableState.REGISTERED:
        raise RegistryError(
            f"the settings of {new.name} changed in {', '.join(changed)}",
            expected=", ".join(f"{name}: {known.settings.get(name)}" for name in changed),
            remedy="the lake's files depend on them: set them back, or begin a new pipeline for the table",
        )
