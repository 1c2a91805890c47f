"""A script of changes and pipeline runs, performed line by line; then the lake has to equal its source.

A line is SQL, or a run of the pipeline in a process of its own: `!consume`, `!apply` (with the snapshots that tables
ask for by themselves), `!snapshot TABLE`, `!rewind TABLE` (half the way), `!maintain`, `!clean` (as if a year had
passed), `!verify` and `!repair TABLE` (nothing may differ at their positions), `!settle` (until nothing waits, then
lake and source are compared); or `!lose`: the metadata store is lost, and rebuilt from bucket and lake; or `!restore`:
it is the copy that `!save` made; or `!set TABLE JSON`: settings of the table in pipeline.yml, with the snapshot that
they may need.
Behind a run of the pipeline may stand ` killed N`: the process dies at its Nth step; or ` meanwhile N LINE`: at its Nth
step it stands still while SQL is performed, or another run of the pipeline by a process that takes it for dead.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from cdc_pipeline.areas import lake_key
from cdc_pipeline.errors import CdcError, SourceError
from cdc_pipeline.lake.columns import history_of
from cdc_pipeline.record import CURRENT, DELETED, TableName
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline
from snapshot.exports import Export
from snapshot.wiring import snapshot_runs
from tests.crash.failpoint import Crash
from tests.crash.world import take_snapshot
from tests.fuzz.shops import Shop
from tests.support.delta_rows import delta_rows, delta_url
from tests.support.ledgers import copy_store, forget_store
from tests.support.pipelines import consume
from tests.support.streams import database_of

MOST_TURNS = 8
A_YEAR = timedelta(days=365)
MOMENT = timedelta(seconds=5)
BEGIN = ("!snapshot", "!settle")
_RUN = re.compile(r"!(\w+)(?: (?!killed|meanwhile)(\w+))?(?: (killed|meanwhile) (\d+)(?: (.*))?)?", re.DOTALL)


class Differs(AssertionError):
    """The lake does not equal its source, or nothing that the pipeline does by itself makes it so."""


def perform(shop: Shop, line: str, *, is_rival: bool = False) -> None:
    """Raises Differs, and whatever else is no error that the pipeline means to raise.

    `is_rival`: another process stands still meanwhile, and keeps its connections.
    """
    if not line.startswith("!"):
        shop.execute(line)
        return
    if line.startswith("!set "):
        _, table, document = line.split(" ", 2)
        set_table(shop, table, json.loads(document))
        return
    found = _RUN.fullmatch(line)
    assert found is not None, line
    verb, table, fault, place, meanwhile = found.groups()
    whole = {"settle": settle, "lose": lose, "save": save, "restore": restore}
    if verb in whole:
        whole[verb](shop)
        return
    at_step = AtStep(place=int(place or 0), act=_act(shop, fault, meanwhile))
    try:
        with shop.world.process(at_step) as pipeline:
            match verb, table:
                case "rewind", str():
                    rewind(shop, pipeline, table)
                case "snapshot", str():
                    run(pipeline, verb, table, shop.export(table))
                case _:
                    run(pipeline, verb, table)
    except (CdcError, Crash):
        if not is_rival:
            shop.bury_the_dead()
    if verb == "clean":
        shop.saved.clear()  # nothing promises that a store older than what was deleted goes on


def rewind(shop: Shop, pipeline: Pipeline, table: str) -> None:
    positions = shop.world.store_query("SELECT position FROM cdc.boundary ORDER BY boundary_id")
    if positions:
        (name,) = (name for name in pipeline.table_names() if name.table == table)
        pipeline.rewind().run(name, positions[len(positions) // 2][0])


def lose(shop: Shop) -> None:
    shop.bury_the_dead()
    forget_store(shop.world.store_url)
    rebuild(shop)


def rebuild(shop: Shop) -> None:
    try:
        with shop.world.process() as pipeline:
            pipeline.rebuild().run()
    except CdcError as error:
        raise Differs(f"the metadata store is not rebuilt: {error}") from error


def save(shop: Shop) -> None:
    shop.bury_the_dead()
    shop.world.leave_store()
    store = database_of(shop.world.store_url)
    copy_store(shop.world.store_url, store, f"{store}_saved")
    shop.saved.append(store)


def restore(shop: Shop) -> None:
    if not shop.saved:
        return
    shop.bury_the_dead()
    shop.world.leave_store()
    store = database_of(shop.world.store_url)
    copy_store(shop.world.store_url, f"{store}_saved", store)


def set_table(shop: Shop, table: str, changed: dict[str, Any]) -> None:
    """Settings that are refused are set back, as its users would do."""
    before = shop.world.settings
    tables = (each.model_dump() | (changed if each.table.table == table else {}) for each in before.tables)
    shop.world.settings = before.model_copy(update={"tables": tuple(map(TableSettings.model_validate, tables))})
    try:
        with shop.world.process() as pipeline:
            (name,) = (name for name in pipeline.table_names() if name.table == table)
            refused = _snapshot(pipeline, (name,)) if shop.is_copied else {}
            if changed.get("history"):
                shop.begun[table] = pipeline.lake.read_version(pipeline.lake_table(name))
    except CdcError:
        shop.world.settings = before
    else:
        if name in refused:
            shop.world.settings = before


@dataclass(slots=True, kw_only=True)
class AtStep:
    """Injected as `on_step`: acts once, when that many steps have begun or ended."""

    place: int
    act: Callable[[], None]
    steps: int = 0
    is_dead: bool = False

    def __call__(self, name: str, moment: Moment) -> None:
        del name, moment
        if self.is_dead:
            raise Crash
        self.steps += 1
        if self.steps == self.place:
            try:
                self.act()
            except Crash:
                self.is_dead = True
                raise


def _act(shop: Shop, fault: str | None, line: str | None) -> Callable[[], None]:
    def die() -> None:
        raise Crash

    def happen() -> None:
        if (line or "").startswith("!"):
            shop.world.expire_leases()
        perform(shop, line or "", is_rival=True)

    return die if fault == "killed" else happen


def run(pipeline: Pipeline, verb: str, table: str | None, export: Export | None = None) -> list[str]:
    """What stopped tables, as far as it is no exception."""
    tables = tuple(name for name in pipeline.table_names() if table in (None, name.table))
    match verb:
        case "consume":
            consume(pipeline)
        case "snapshot":
            _snapshot(pipeline, tables, export)
        case "clean":
            pipeline.cleanup().clean(now=pipeline.store.snapshot_history.now() + A_YEAR)
        case "maintain":
            for name in tables:
                pipeline.maintenance().maintain(name)
        case "verify":
            verify(pipeline, tables)
        case "repair":
            repair(pipeline, tables)
        case "apply":
            _snapshot(pipeline, snapshot_runs(pipeline).wanted(tables))
            return [str(found.error) for found in pipeline.slice_runs().apply(tables, by_hand=True) if found.error]
        case _:
            raise ValueError(verb)
    return []


def verify(pipeline: Pipeline, tables: tuple[TableName, ...]) -> None:
    for found in pipeline.verification().verify(tables, timeout=MOMENT):
        compared = [each for each in (found.comparison, found.history) if each is not None]
        if any(each.differing_rows for each in compared):
            raise Differs(f"cdc verify says: {found}")


def repair(pipeline: Pipeline, tables: tuple[TableName, ...]) -> None:
    for table in tables:
        found = pipeline.repair().run(table, timeout=MOMENT)
        if found.rows_written or found.rows_removed:
            raise Differs(f"cdc repair says: {found}")


def _snapshot(
    pipeline: Pipeline, tables: tuple[TableName, ...], export: Export | None = None
) -> Mapping[TableName, SourceError]:
    """As `SnapshotRuns.take`, in one thread: the steps of a run come in the same order whenever it is repeated."""
    if not tables:
        return {}
    refused = pipeline.source_setup().set_up(begin_again=tables).refused
    take_snapshot(pipeline, [name for name in tables if name not in refused], export=export)
    return refused


def settle(shop: Shop) -> None:
    shop.arrive()
    for _ in range(MOST_TURNS):
        errors = list[str]()
        for verb in ("consume", "apply"):
            try:
                with shop.world.process() as pipeline:
                    errors += run(pipeline, verb, None)
            except CdcError as error:
                errors.append(str(error))
                shop.bury_the_dead()
        waiting = shop.world.store_query("SELECT table_name, state_reason FROM cdc.source_table WHERE state <> 'live'")
        if any("run cdc rebuild" in error for error in errors):
            rebuild(shop)
        errors = [error for error in errors if not shop.may_stand(error)]
        standing = [table for table, reason in waiting if shop.may_stand(reason or "")]
        if not errors and len(standing) == len(waiting):
            check_equal(shop, standing)
            return
        for table, reason in waiting:
            if "exclude_columns" in (reason or ""):
                set_table(shop, table, {"exclude_columns": []})
            was_restored = bool(shop.saved) and "run cdc snapshot" in (reason or "")
            if table in shop.exports or was_restored:
                with suppress(CdcError), shop.world.process() as pipeline:
                    run(pipeline, "snapshot", table, shop.exports.get(table))
    raise Differs(f"it does not settle: {errors}, {waiting}")


def check_equal(shop: Shop, standing: Collection[str] = ()) -> None:
    """All columns that the source's catalogue has now, by plain SELECT against what deltalake reads.

    `standing`: tables that are stale for ever.
    """
    with shop.world.process() as pipeline:
        for name in (name for name in pipeline.table_names() if name.table not in standing):
            columns = [column for column, _ in shop.columns(name.table)]
            excluded = set(pipeline.settings.table(name).exclude_columns)
            shown = set(pipeline.lake.read_columns(pipeline.lake_table(name)))
            if shown & excluded or not shop.may_show(name.table, shown | excluded.intersection(columns)):
                raise Differs(f"{name.table} has the columns {columns}, and the lake shows {sorted(shown)}")
            names = [column for column in columns if column in shown]
            found = [row for row in delta_rows(delta_url(pipeline.objects, lake_key(name))) if not row[DELETED]]
            in_lake = _counted(shop, ([row[column] for column in names] for row in found))
            check_history(shop, pipeline, name, names, in_lake)
            in_source = _counted(shop, shop.rows(name.table, names))
            if in_lake != in_source:
                only = f"only in the source: {in_source - in_lake}\nonly in the lake: {in_lake - in_source}"
                raise Differs(f"{name.table} {names}\n{only}")


def check_history(
    shop: Shop, pipeline: Pipeline, name: TableName, columns: list[str], in_lake: Counter[tuple[Any, ...]]
) -> None:
    """The periods that go on have the table's rows; those of a history that was switched on, since the next commit."""
    table = pipeline.lake_table(name)
    history, version = history_of(table), pipeline.lake.read_version(table)
    if not table.keeps_history or version == shop.begun.get(name.table) or pipeline.lake.read_version(history) is None:
        return
    periods = delta_rows(delta_url(pipeline.objects, lake_key(history.name)))
    current = (row for row in periods if row[CURRENT] and not row[DELETED])
    found = _counted(shop, ([row[column] for column in columns] for row in current))
    if found != in_lake:
        only = f"only in the table: {in_lake - found}\nonly in its history: {found - in_lake}"
        raise Differs(f"{history.name} {columns}\n{only}")


def _counted(shop: Shop, rows: Iterable[Iterable[Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(shop.plain(value) for value in row) for row in rows)
