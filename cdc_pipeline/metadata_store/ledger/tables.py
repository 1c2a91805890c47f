"""Source tables: what they are, their schemas, and the states that people and snapshots give them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, select, update
from sqlalchemy.dialects.postgresql import insert

from cdc_pipeline.errors import RegistryError, SourceChanged, UsageError
from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.leases import Lease, hold_lease
from cdc_pipeline.metadata_store.ledger.cut import schema_identity
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.models.states import TableState
from cdc_pipeline.record import Column, TableName, TableSchema

FIXED_SETTINGS = ("id", "partition_by", "deletes")
"""What the files of the lake were written by: it changes only before the first snapshot."""
_TABLE = models.source_table


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """`settings` is JSON; `table_uuid` and `publication_mark` count only for a table that has none yet.

    A table is named within its stream: several pipelines may keep their ledgers in one store.
    """

    name: TableName
    stream: str
    source_oid: int
    settings: Mapping[str, Any]
    table_uuid: UUID
    publication_mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Of one stream. `known`: schemas that were read already, by table and id; what is recorded under an id never
    changes.
    """

    database: Database
    stream: str
    known: dict[tuple[int, str], TableSchema] = field(default_factory=dict, repr=False, compare=False)

    def register_table(self, new: NewTable) -> SourceTable:
        """Idempotent; later settings replace earlier ones, except that FIXED_SETTINGS stay once a snapshot began.

        Raises SourceChanged when another table has the name now, RegistryError for a fixed setting.
        """
        with self.database.transaction("table.register") as connection:
            connection.execute(
                insert(_TABLE)
                .values(
                    table_uuid=new.table_uuid,
                    stream=new.stream,
                    database_name=new.name.database,
                    schema_name=new.name.schema,
                    table_name=new.name.table,
                    source_oid=new.source_oid,
                    settings=dict(new.settings),
                    publication_mark=new.publication_mark,
                )
                .on_conflict_do_nothing(index_elements=["stream", "database_name", "schema_name", "table_name"])
            )
            known = read_table(connection, _named(new.name, new.stream), str(new.name), lock=True)
            _check_same(known, new)
            if known.publication_mark is None and known.state is not TableState.STALE:
                known = _changed(connection, known.table_id, publication_mark=new.publication_mark)
            if known.settings == dict(new.settings):
                return known
            return _changed(connection, known.table_id, settings=dict(new.settings))

    def table(self, name: TableName) -> SourceTable:
        """Raises UsageError when it is not registered."""
        with self.database.transaction("table.read") as connection:
            return read_table(connection, _named(name, self.stream), str(name))

    def find(self, name: TableName) -> SourceTable | None:
        """None: it is not registered."""
        with self.database.transaction("table.read") as connection:
            row = connection.execute(select(_TABLE).where(_named(name, self.stream))).one_or_none()
        return None if row is None else SourceTable(**row._asdict())

    def table_by_id(self, table_id: int) -> SourceTable:
        with self.database.transaction("table.read") as connection:
            return read_table(connection, _TABLE.c.table_id == table_id, f"number {table_id}")

    def tables(self) -> tuple[SourceTable, ...]:
        """By name."""
        order = (_TABLE.c.database_name, _TABLE.c.schema_name, _TABLE.c.table_name)
        with self.database.transaction("table.list") as connection:
            rows = connection.execute(select(_TABLE).where(_TABLE.c.stream == self.stream).order_by(*order)).all()
        return tuple(SourceTable(**row._asdict()) for row in rows)

    def record_schema(self, table_id: int, schema: TableSchema, *, first_offset: str, is_newest: bool = True) -> str:
        """Id of the schema, which is now the table's newest if it `is_newest`; a known one keeps its first offset.

        The registration of a slice makes its schema the newest by itself.
        """
        schema_id = schema_identity(schema)
        with self.database.transaction("schema.record") as connection:
            connection.execute(
                insert(models.table_schema)
                .values(table_id=table_id, schema_id=schema_id, document=schema.to_json(), first_offset=first_offset)
                .on_conflict_do_nothing()
            )
            if is_newest:
                connection.execute(update(_TABLE).where(_TABLE.c.table_id == table_id).values(schema_id=schema_id))
        return schema_id

    def known_columns(self, table_id: int) -> dict[str, Column]:
        """Every column that the table ever had, by name, with the last type that it had."""
        known = models.table_schema
        query = select(known.c.document).where(known.c.table_id == table_id).order_by(known.c.first_offset)
        newest = select(known.c.document).join(
            _TABLE, (_TABLE.c.table_id == known.c.table_id) & (_TABLE.c.schema_id == known.c.schema_id)
        )
        with self.database.transaction("schema.read") as connection:
            documents = [
                *connection.scalars(query),
                *connection.scalars(newest.where(_TABLE.c.table_id == table_id)),
            ]
        return {column.name: column for document in documents for column in TableSchema.from_json(document).columns}

    def schema(self, table_id: int, schema_id: str) -> TableSchema:
        found = self.known.get((table_id, schema_id))
        if found is None:
            found = self.known[table_id, schema_id] = self._read_schema(table_id, schema_id)
        return found

    def _read_schema(self, table_id: int, schema_id: str) -> TableSchema:
        with self.database.transaction("schema.read") as connection:
            document = connection.scalar(
                select(models.table_schema.c.document).where(
                    models.table_schema.c.table_id == table_id, models.table_schema.c.schema_id == schema_id
                )
            )
        if document is None:
            raise RegistryError(
                f"table {table_id} has no schema {schema_id}",
                remedy="the slice that names it belongs to another metadata store",
            )
        return TableSchema.from_json(document)

    def set_shapes(self, table_id: int, shapes: Sequence[Mapping[str, Any]]) -> SourceTable:
        """What the source's catalogue says of the table: the shapes of its coming events, oldest first."""
        with self.database.transaction("table.set_shapes") as connection:
            return _changed(connection, table_id, shape=list(shapes))

    def end_change(self, table_id: int, generation: int) -> None:
        """No event of an older shape than that of `generation` comes any more. Idempotent."""
        with self.database.transaction("table.end_change") as connection:
            row = read_table(connection, _TABLE.c.table_id == table_id, f"number {table_id}", lock=True)
            left = [shape for shape in row.shape or () if shape["generation"] >= generation]
            _changed(connection, table_id, shape=left)

    def begin_repair(self, lease: Lease) -> None:
        """From now on deletes leave tombstones, until the repair is registered or ended. Raises StaleEpoch."""
        self._set_under_repair(lease, is_under_repair=True)

    def end_repair(self, lease: Lease) -> None:
        """Nothing differed. Raises StaleEpoch."""
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
        raise UsageError(
            f"there is no table {words} in the metadata store",
            remedy="list it in pipeline.yml and run cdc setup-source",
        )
    return SourceTable(**row._asdict())


def _named(name: TableName, stream: str) -> ColumnElement[bool]:
    return (
        (_TABLE.c.stream == stream)
        & (_TABLE.c.database_name == name.database)
        & (_TABLE.c.schema_name == name.schema)
        & (_TABLE.c.table_name == name.table)
    )


def _changed(connection: Connection, table_id: int, **values: Any) -> SourceTable:
    row = connection.execute(
        update(_TABLE).where(_TABLE.c.table_id == table_id).values(**values).returning(_TABLE)
    ).one_or_none()
    if row is None:
        raise UsageError(
            f"there is no table number {table_id} in the metadata store",
            remedy="run cdc setup-source: it registers the tables of pipeline.yml",
        )
    return SourceTable(**row._asdict())


def _check_same(known: SourceTable, new: NewTable) -> None:
    if known.source_oid != new.source_oid:
        raise SourceChanged(
            f"{new.name} is now the table with oid {new.source_oid}",
            expected=f"oid {known.source_oid}",
            remedy="another table has the name now: run cdc snapshot on it",
        )
    changed = [name for name in FIXED_SETTINGS if known.settings.get(name) != new.settings.get(name)]
    if changed and known.state is not TableState.REGISTERED:
        raise RegistryError(
            f"the settings of {new.name} changed in {', '.join(changed)}",
            expected=", ".join(f"{name}: {known.settings.get(name)}" for name in changed),
            remedy="the lake's files depend on them: set them back, or begin a new pipeline for the table",
        )
