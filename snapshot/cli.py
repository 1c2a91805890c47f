"""`cdc snapshot` and `cdc apply`: the commands that fill the lake without the Airflow UI."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_pipeline.cli.context import CHECK_FAILED, POSTGRES_AND_SPARK, context_of, worst
from cdc_pipeline.cli.pipeline_commands import Json, Tables, UntilIdle
from cdc_pipeline.cli.stack_commands import Config
from cdc_pipeline.errors import CdcError, UsageError
from cdc_pipeline.record import TableName

if TYPE_CHECKING:
    from cdc_pipeline.metadata_store.snapshots.records import Snapshot
    from snapshot.exports import Export

_POLL_SECONDS = 1.0
_WANTED_SECONDS = 30.0
"""How often `cdc apply` looks for tables that want a snapshot: a source that is away takes some seconds to say so."""
From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="PREFIX", help="exported files of one table: a folder, a file or s3://bucket/folder"
    ),
]
AsOf = Annotated[
    str | None,
    typer.Option("--as-of", metavar="POSITION", help="with --from: the position of the rows, as the source writes it"),
]
NoHeader = Annotated[
    bool, typer.Option("--no-header", help="with --from: CSV files have the table's columns in order, and no names")
]


def add_to(app: typer.Typer) -> None:
    app.command(name="snapshot")(snapshot)
    app.command()(apply)


def apply(
    tables: Tables = None,
    config: Config = None,
    until_idle: UntilIdle = False,
    as_json: Json = False,
) -> None:
    """Apply registered slices to the lake, until Ctrl-C or SIGTERM.

    With --until-idle it ends when nothing waits, and prints what it did to each table. A table that failed pauses
    before its next try; tables that are named here are tried at once. A table that changed in a way that its stream
    does not show gets a new snapshot first, for which all tables wait, unless its on_schema_change is stop.
    Without it a changed pipeline.yml is read again. Exit code 4: another process works on a
    table, or the table pauses, and no table failed.
    """
    from snapshot.wiring import snapshot_runs

    context, by_hand, changed = context_of(config, as_json=as_json), bool(tables), True
    while changed:
        settings, looked_at, changed = context.settings, float("-inf"), False
        with context.pipeline(POSTGRES_AND_SPARK, settings, command="apply" if until_idle else None) as pipeline:
            names, runs = pipeline.table_names(tuple(tables or ())), snapshot_runs(pipeline)
            while not changed:
                if time.monotonic() - looked_at >= _WANTED_SECONDS:
                    runs.take_wanted(names, slots=settings.snapshot.concurrency)
                    looked_at = time.monotonic()
                results = pipeline.slice_runs().apply(names, by_hand=by_hand)
                by_hand = False
                if until_idle:
                    break
                time.sleep(_POLL_SECONDS)
                changed = not context.has(settings)
    rows: list[dict[str, Any]] = [result.row() for result in results]
    context.show(rows)
    raise typer.Exit(worst({result.exit_code for result in results}))


def snapshot(
    tables: Tables = None,
    config: Config = None,
    as_json: Json = False,
    from_: From = None,
    as_of: AsOf = None,
    no_header: NoHeader = False,
) -> None:
    """Build the initial lake as of a Snapshot Cutoff.

    With --from and --as-of, the rows of one table come from files that another program exported, and not from the
    source. Run it again to resume a snapshot that was killed. Exit code 3: rows that the lake cannot hold are
    quarantined.
    """
    from cdc_pipeline.metadata_store.states import SnapshotState
    from snapshot.wiring import snapshot_runs

    export = _export(tables or [], from_, as_of, no_header=no_header)
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_AND_SPARK, command="snapshot") as pipeline:
        chosen = pipeline.table_names(tuple(tables or ()))
        all_refused = pipeline.source_setup().set_up(begin_again=chosen).refused
        refused = {name: why for name, why in all_refused.items() if name in chosen}
        ready = [name for name in chosen if name not in refused]
        slots = pipeline.settings.snapshot.concurrency
        snapshots = snapshot_runs(pipeline, export=export).take(ready, slots=slots) if ready else ()
        ended = dict(zip(ready, snapshots, strict=True))
        withheld = {name: pipeline.store.snapshot_history.withheld(found.snapshot_id) for name, found in ended.items()}
    context.show([_row(name, ended.get(name), refused.get(name), withheld.get(name, 0)) for name in chosen])
    if refused or any(found.state is not SnapshotState.PUBLISHED for found in ended.values()):
        raise typer.Exit(1)
    raise typer.Exit(CHECK_FAILED if any(withheld.values()) else 0)


def _export(tables: Sequence[str], place: str | None, as_of: str | None, *, no_header: bool) -> "Export | None":
    """Returns the files that the options name, None without --from. Raises UsageError for options that do not fit."""
    from snapshot.wiring import export_at

    if place is None and (as_of is not None or no_header):
        raise UsageError("--as-of and --no-header are for exported files", remedy="give --from, or leave them out")
    if place is None:
        return None
    count = len(set(tables))
    if as_of is None or count != 1:
        raise UsageError(
            f"--from {place} with {count} tables and {'no ' if as_of is None else ''}--as-of",
            expected="one table, and the position that its rows were exported at",
            remedy="run cdc snapshot TABLE --from PREFIX --as-of POSITION for each table",
        )
    return export_at(place, as_of, header=False if no_header else None)


def _row(name: TableName, found: "Snapshot | None", refused: CdcError | None, withheld: int) -> Mapping[str, Any]:
    """Returns one table's row of the output; a refused table has no snapshot."""
    return {
        "table": str(name),
        "snapshot": found and found.snapshot_id,
        "state": found.state if found else "refused",
        "rows": found and found.rows,
        "rows_withheld": withheld,
        "files": found and found.files,
        "cutoff_time": found and found.cutoff_time,
        "error": found.error if found else str(refused),
    }
