"""`cdc snapshot`: the initial lake of some tables, without the UI."""

import typer

from cdc_pipeline.cli.context import POSTGRES_AND_SPARK, context_of
from cdc_pipeline.cli.pipeline_commands import Json, Tables
from cdc_pipeline.cli.stack_verbs import Config
from cdc_pipeline.metadata_store.states import SnapshotState

CHECK_FAILED = 3


def add_to(app: typer.Typer) -> None:
    app.command(name="snapshot")(snapshot)


def snapshot(tables: Tables = None, config: Config = None, as_json: Json = False) -> None:
    """Build the initial lake as of a Snapshot Cutoff; run again, it resumes what was killed.

    Exit code 3: rows that the lake cannot hold are withheld, and wait in quarantine.
    """
    from cdc_pipeline.source_setup import set_up_source
    from snapshot.run import run_snapshot

    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_AND_SPARK) as pipeline:
        names = pipeline.table_names(tuple(tables or ()))
        set_up_source(pipeline, begin_again=names)
        ended = run_snapshot(pipeline, names, slots=pipeline.settings.snapshot.concurrency)
        withheld = [pipeline.store.history.withheld(found.snapshot_id) for found in ended]
    context.show(
        [
            {
                "table": str(name),
                "snapshot": found.snapshot_id,
                "state": found.state,
                "rows": found.rows,
                "rows_withheld": rows_withheld,
                "files": found.files,
                "cutoff_time": found.cutoff_time,
                "error": found.error,
            }
            for name, found, rows_withheld in zip(names, ended, withheld, strict=True)
        ]
    )
    if any(found.state is not SnapshotState.PUBLISHED for found in ended):
        raise typer.Exit(1)
    raise typer.Exit(CHECK_FAILED if any(withheld) else 0)
