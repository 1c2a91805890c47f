"""Where the rows of a snapshot come from: a position that the source holds, or files that another program exported."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from cdc_pipeline.errors import ObjectMissing, SnapshotError, UsageError
from cdc_pipeline.metadata_store.ledger.records import SourceTable
from cdc_pipeline.metadata_store.states import TableState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.object_store import ObjectStore
from cdc_pipeline.record import BEFORE_ALL, VERSION, TableName, TableSchema
from cdc_pipeline.sources.copied_rows import TEXT, HeldPosition
from cdc_pipeline.sources.known import FoundTable
from cdc_pipeline.sources.protocol import Source, TableCopy
from cdc_pipeline.steps import OnStep, no_step, step

_NAMED = "files:"
"""Begins the name of a copy that is read from files. No source names its own copies so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Exported files of one table, as of a position.

    `url`: `file:///…` or `s3://…`. `as_of`: the position of the rows, as the source writes it. `only`: the one file
    below `url`, or a pattern of names; "" for all. `header`: whether CSV files begin with the names of their columns;
    None for what pipeline.yml says.
    """

    url: str
    as_of: str
    only: str = ""
    header: bool | None = None

    @property
    def exported(self) -> str:
        """The name by which other processes open a copy: everything that they need to find the rows."""
        return _NAMED + TypeAdapter(dict[str, str | bool | None]).dump_json(asdict(self)).decode()

    @classmethod
    def of(cls, exported: str) -> Self | None:
        """Reads the name of a copy; None for a copy that the source itself shows."""
        if not exported.startswith(_NAMED):
            return None
        return TypeAdapter(cls).validate_json(exported.removeprefix(_NAMED))


class ExportedCopy(TableCopy, Protocol):
    """A copy that is read from files."""

    def oldest(self) -> datetime:
        """Returns when the oldest of the files was written last. Raises SnapshotError if there is none."""


class OpensCopies(Protocol):
    """What exports the rows of a snapshot."""

    def copy_at(self, exported: str) -> AbstractContextManager[TableCopy]:
        """Opens a copy by its name. Raises SnapshotError if its position is no longer held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRows:
    """The rows of snapshots: copies that `source` shows, and copies from files, which `open_files` opens.

    `export`: what a new snapshot is taken of; None for a position that the source holds. `first_offset`: returns
    where the stream continues, or begins. `objects`: the lake's bucket, with the slice files.
    """

    source: Source
    open_files: Callable[[Export], ExportedCopy]
    store: MetadataStore
    objects: ObjectStore
    first_offset: Callable[[], str]
    export: Export | None = None
    on_step: OnStep = no_step

    @contextmanager
    def hold_position(self, purpose: str, *, name: str) -> Iterator[HeldPosition]:
        """Holds the position of new snapshots. Files stay as they are by themselves."""
        if self.export is None:
            with self.source.hold_position(purpose, name=name) as held:
                yield held
            return
        written = self.source.position_of(self.export.as_of)
        yield HeldPosition(
            position=written.position or 0,
            shown=self.export.as_of,
            time=written.time or self.open_files(self.export).oldest(),
            exported=self.export.exported,
            row_version=written.row_version,
        )

    def is_held(self, purpose: str, *, name: str) -> bool:
        return self.source.is_held(purpose, name=name)

    @contextmanager
    def copy_at(self, exported: str) -> Iterator[TableCopy]:
        export = Export.of(exported)
        if export is not None:
            yield self.open_files(export)
            return
        with self.source.copy_at(exported) as copy:
            yield copy

    def check_copied(self, table: FoundTable, parts: int) -> None:
        self.source.check_copied(table, parts)

    def check_resumable(self, name: TableName, exported: str | None) -> None:
        """Raises SnapshotError if the active snapshot of a table is of other rows than those that were asked for."""
        if self.export is not None and exported != self.export.exported:
            raise SnapshotError(
                f"another snapshot of {name} is under way",
                expected=f"none, or one from the files below {self.export.url} as of {self.export.as_of}",
                remedy="run cdc snapshot without --from until it has ended (for a table that begins empty, cdc apply)",
            )

    def check_complete(self, row: SourceTable, cutoff: HeldPosition) -> None:
        """Raises UsageError if changes that came after an export may not be among the slices that follow its cutoff.

        Also if its columns may be others than the newest registered ones, under which the files are
        read. A position that the source holds is after every registered slice; one of files may be older.
        """
        if self.export is None:
            return
        schema = row.schema_id and self.store.tables.schema(row.table_id, row.schema_id)
        if not schema:
            raise UsageError(
                f"the columns of {row.name} are not known yet",
                expected="columns that pipeline.yml lists, or an event that has shown them",
                remedy="list columns and id of the table in pipeline.yml, or run cdc consume first",
            )
        lost = self._lost_changes(row, cutoff)
        if lost is not None:
            raise UsageError(
                f"changes of {row.name} after --as-of {cutoff.shown} may be missing: {lost}",
                expected="an export that was taken after cdc setup-source, with all later changes still registered",
                remedy="export the table again, and give the position of that time; for a source without a database,"
                f" take the table out of pipeline.yml, run cdc remove {row.name} --lake, list it again, run"
                " cdc setup-source, and export it after that",
            )
        _check_columns(row, schema, cutoff)

    def _lost_changes(self, row: SourceTable, cutoff: HeldPosition) -> str | None:
        """Returns why slices lack changes that the export does not contain; None if they have all of them.

        Where versions alone say which changes come later, every slice of the table is needed.
        """
        if row.state is TableState.STALE:
            remedy = "" if cutoff.row_version else "; run cdc snapshot without --from"
            return f"the stream has a gap: {row.state_reason}{remedy}"
        if cutoff.row_version:
            return self._deleted_slices(row, 0) or self._incomparable(row, cutoff)
        published = row.cutoff_offset or ""
        if cutoff.offset < published:
            return (
                f"the table's last snapshot is of a later position, {published}, and may have corrected what was lost"
            )
        fence = self.store.snapshots.fence_at(row.table_id, cutoff.offset)
        return self._deleted_slices(row, fence) or self._unread_changes(row, cutoff, fence)

    def _incomparable(self, row: SourceTable, cutoff: HeldPosition) -> str | None:
        """Returns why versions of the events do not compare with the position; None if they do.

        Texts sort above all numbers: as of a text, every event that is ordered by numbers would count as older.
        """
        is_text, last = cutoff.row_version.startswith(TEXT), row.next_slice_number - 1
        if cutoff.row_version == BEFORE_ALL:
            return None
        for file in self.store.retention.old_files(row.table_id, after=last - 1, through=last, batch=1):
            with step(self.on_step, "slice_file.get"):
                content = self.objects.get(file.path)
            versions = pq.read_table(pa.BufferReader(content), columns=[VERSION])[VERSION].to_pylist()
            if versions and all(version.startswith(TEXT) != is_text for version in versions):
                found, wanted = ("a text", "numbers") if is_text else ("a number", "texts")
                return f"the position begins with {found}, and the events are ordered by {wanted}"
        return None

    def _deleted_slices(self, row: SourceTable, fence: int) -> str | None:
        """Returns why slices behind the fence are missing; None if their files are there.

        Retention deletes files in their order, so that the first one shows it. A metadata store that was rebuilt does
        not know what was deleted.
        """
        deleted = "old slices of the table are deleted"
        if row.forgotten_through > fence:
            return deleted
        last = row.next_slice_number - 1
        for file in self.store.retention.old_files(row.table_id, after=fence, through=last, batch=1):
            try:
                with step(self.on_step, "slice_file.head"):
                    self.objects.head(file.path)
            except ObjectMissing:
                return deleted
        return None

    def _unread_changes(self, row: SourceTable, cutoff: HeldPosition, fence: int) -> str | None:
        """Returns why the stream lacks changes behind the cutoff; None if it has all of them.

        The source gives changes of a table only from its set-up on, which the stream may reach much later.
        """
        if cutoff.time < row.registered_at:
            return f"the oldest file is from {cutoff.time:%Y-%m-%d %H:%M:%SZ}, and the table was set up after that"
        slices = {each.number: each for each in self.store.slices.slices(row.table_id, fence, fence + 1)}
        if fence in slices:
            is_read = slices[fence].commit_time >= row.registered_at
            return None if is_read else "the last cut before that is older than the set-up of the table"
        following = slices.get(fence + 1)
        first = following.start_offset if following is not None else self.first_offset()
        if cutoff.offset < first:
            return "it is older than the first change that the stream has"
        last = self.store.lake_positions.boundary_at(row.stream, first) if fence == 0 else None
        is_read = last is None or (row.followed_at == first and last.commit_time >= row.registered_at)
        return None if is_read else "the table's changes are read from a later cut on"


def _check_columns(row: SourceTable, schema: TableSchema, cutoff: HeldPosition) -> None:
    """Raises UsageError unless `schema`, the newest registered one, is known to be that of the position."""
    # Files have columns by name, and are read under the newest ones: after a rename, into another column.
    found = max((int(shape.get("generation", 0)) for shape in row.shape or ()), default=0)
    if max(found, schema.generation) > cutoff.position:
        raise UsageError(
            f"{row.name} has other columns since --as-of {cutoff.shown}, or the pipeline first saw them after that",
            expected="a position behind the last change of its columns that the pipeline has seen",
            remedy="export the table again, and give the position of that time, or run cdc snapshot without --from",
        )
    if found > schema.generation:
        raise UsageError(
            f"the columns of {row.name} changed, and no slice has the new ones yet",
            remedy="run cdc consume, then the same command again",
        )
