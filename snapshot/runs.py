"""Runs snapshots of some tables from start to end: in one process, or in parts that a scheduler runs in parallel."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Event
from typing import Any

import structlog

from cdc_pipeline.errors import CdcError, SnapshotError, StoreAway
from cdc_pipeline.metadata_store.snapshots.records import Snapshot
from cdc_pipeline.metadata_store.states import SnapshotState
from cdc_pipeline.metadata_store.store import MetadataStore
from cdc_pipeline.record import TableName
from snapshot.hand_offs import PublishedRows, SlotOrder, from_json, to_json
from snapshot.orchestrator import SnapshotOrchestrator
from snapshot.patience import LONGEST_AWAY, Patience
from snapshot.worker import SnapshotWorker

log = structlog.get_logger()
_STORE_AWAY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRuns:
    """Runs snapshots. Every part of a run may be killed and run again.

    `begin`, `orchestrate` and `work` are the parts for a scheduler. They pass the JSON of SlotOrder to each other.

    `table_names`: returns the tables of these names, and all tables of pipeline.yml for no names; raises SettingsError
    for an unknown name. `set_up`: makes the source ready to read the tables; returns every table of
    pipeline.yml that it refuses, with the reason. `worker`: builds the worker slot of this number. `longest_away`: so
    long a slot waits for a metadata store that does not answer.
    """

    store: MetadataStore
    table_names: Callable[[tuple[str, ...]], tuple[TableName, ...]]
    set_up: Callable[[Sequence[TableName]], Mapping[TableName, CdcError]]
    orchestrator: SnapshotOrchestrator
    worker: Callable[[int], SnapshotWorker]
    longest_away: timedelta = LONGEST_AWAY

    def take(self, tables: Sequence[TableName], *, slots: int) -> tuple[Snapshot, ...]:
        """Runs the orchestrator in this thread and the worker slots in others; returns the ended snapshots.

        An error that ends a worker slot ends the run and is raised.
        """
        since, stop = self.store.snapshot_history.now(), Event()
        with ThreadPoolExecutor(max_workers=slots) as threads:
            running = [threads.submit(self._work, number, tables, since, stop) for number in range(slots)]
            for future in running:
                future.add_done_callback(lambda ended: stop.set() if ended.exception() else None)
            try:
                snapshots = self.orchestrator.run(tables, stop)
            finally:
                stop.set()
            for future in running:
                future.result()
        return snapshots

    def _work(
        self,
        number: int,
        tables: Sequence[TableName],
        since: datetime,
        stop: Event,
        check: Callable[[], None] = lambda: None,
    ) -> int:
        """Builds the slot in its own thread: each thread has a Spark session of its own.

        Begins again when the metadata store did not answer. Raises StoreAway if it stays away. Returns the number of
        tasks done since the slot last began.
        """
        worker, patience = self.worker(number), Patience(self.longest_away)
        while not stop.is_set():
            try:
                return worker.run(tables, since, stop, check, patience.answered)
            except StoreAway as error:
                patience.endure(error)
                log.warning("worker slot begins again", slot=number, found=error.found)
                check()
                stop.wait(_STORE_AWAY_SECONDS)
        return 0

    def wanted(self, tables: Sequence[TableName]) -> tuple[TableName, ...]:
        """Returns the tables that need a snapshot now: they changed in a way that their stream does not show."""
        wanted = {row.name for row in self.store.tables.tables() if row.snapshot_wanted}
        return tuple(name for name in tables if name in wanted)

    def take_wanted(self, tables: Sequence[TableName], *, slots: int) -> tuple[Snapshot, ...]:
        """Takes snapshots of the tables that need one now; returns an empty tuple if no table does.

        Leaves out those of which one is being taken, and those whose last ones failed, until their pause is over.
        Readers see the old rows until the commit that shows the new ones. An error is only logged, such as of a source
        or of a metadata store that is away: slices of the other tables can be applied meanwhile.
        """
        due: tuple[TableName, ...] = ()
        try:
            due = self._due(self.wanted(tables))
            if not due:
                return ()
            refused = self.set_up(due)
            ready = tuple(name for name in due if name not in refused)
            log.info("snapshots begin by themselves", tables=", ".join(map(str, ready)))
            return self.take(ready, slots=slots) if ready else ()
        except CdcError as error:
            log.warning("wanted snapshots not taken", tables=", ".join(map(str, due)), found=str(error))
            return ()

    def _due(self, wanted: tuple[TableName, ...]) -> tuple[TableName, ...]:
        due = self.store.stale_tables.wanting_snapshot() if wanted else ()
        return tuple(name for name in wanted if self.store.tables.table(name).table_id in due)

    def begin(self, chosen: Sequence[str] | None, slots: int, *, keeps_pauses: bool = False) -> list[dict[str, Any]]:
        """Makes the source ready; returns one SlotOrder per worker slot.

        `chosen`: the tables' names. None means the tables that need a snapshot now, except those that pause after a
        failed one. If all of them pause, it means all of them, unless the run `keeps_pauses`, which a run does that
        Airflow started and nobody cleared. Returns an empty list if there is no table. A table that the source refuses
        is left out, and `orchestrate` names it; if no table is left, raises the first refusal.
        """
        wanted = self.wanted(self.table_names(())) if chosen is None else ()
        due = self._due(wanted) or (() if keeps_pauses else wanted)
        names = due if chosen is None else self.table_names(tuple(chosen))
        refused = {name: why for name, why in self.set_up(names).items() if name in names} if names else {}
        ready = [name for name in names if name not in refused]
        if names and not ready:
            raise next(iter(refused.values()))
        since, tables = self.store.snapshot_history.now(), tuple(map(str, ready))
        numbers, reasons = range(slots if ready else 0), tuple(f"{name}: {why}" for name, why in refused.items())
        return [to_json(SlotOrder(chosen=tables, since=since, slot=slot, refused=reasons)) for slot in numbers]

    def orchestrate(
        self, orders: Sequence[Mapping[str, Any]], check: Callable[[], None] = lambda: None
    ) -> list[dict[str, Any]]:
        """Publishes the tables of a run that `begin` described; returns one PublishedRows per table.

        `check` raises an error if no worker slot of the run goes on. A snapshot that has already ended in this run is
        not repeated.

        Raises SnapshotError after all other tables are published; it names each table that failed or was refused.
        """
        if not orders:
            return []
        run = from_json(SlotOrder, orders[0])
        names = {self.store.tables.table(name).table_id: name for name in self.table_names(run.chosen)}
        ended = self.store.snapshot_history.ended_since(list(names), run.since)
        known = {snapshot.table_id for snapshot in ended}
        left = [name for table_id, name in names.items() if table_id not in known]
        snapshots = (*ended, *self.orchestrator.run(left, Event(), check))
        failed = [found for found in snapshots if found.state is not SnapshotState.PUBLISHED]
        reasons = [f"{names[found.table_id]} {found.state}: {found.error}" for found in failed]
        if reasons or run.refused:
            raise SnapshotError(
                "; ".join((*reasons, *run.refused)),
                expected="every table published",
                remedy="correct what it names and run the snapshot of these tables again; the others are done",
            )
        return [to_json(self._published(names[found.table_id], found)) for found in snapshots]

    def work(self, order: Mapping[str, Any], check: Callable[[], None] = lambda: None) -> int:
        """Does tasks until every table has a snapshot that ended in this run; returns how many, as in `_work`.

        `check` raises an error if the orchestrator of the run does not go on. A metadata store that is away for some
        minutes does not end the slot: the retries of a scheduler would be spent sooner.
        """
        slot = from_json(SlotOrder, order)
        return self._work(slot.slot, self.table_names(slot.chosen), slot.since, Event(), check)

    def _published(self, name: TableName, found: Snapshot) -> PublishedRows:
        return PublishedRows(
            table=str(name),
            rows=found.rows,
            rows_withheld=self.store.snapshot_history.withheld(found.snapshot_id),
            files=found.files,
            lake_version=found.lake_version,
        )
