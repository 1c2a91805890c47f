"""`cdc snapshot`: the initial lake of some tables, without the UI."""

import typer

from cdc_pipeline.cli.context import POSTGRES_AND_SPARK, context_of
from cdc_pipeline.cli.pipeline_commands import Json, Tables
from cdc_pipeline.cli.stack_verbs import Config
from cdc_pipeline.metadata_store.states import SnapshotState


def add_to(app: typer.Typer) -> None:
    app.command(name="snapshot")(snapshot)


def snapshot(tables: Tables = None, config: Config = None, as_json: Json = False) -> None:
    """Build the initial lake as of a Snapshot Cutoff; run again, it resumes what was killed."""
    from cdc_pipeline.source_setup import set_up_source
    from snapshot.run import run_snapshot

    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_AND_SPARK) as pipeline:
        names = pipeline.table_names(tuple(tables or ()))
        set_up_source(pipeline, begin_again=names)
        ended = run_snapshot(pipeline, names, slots=pipeline.settings.snapshot.concurrency)
    context.show(
        [
            {
                "table": str(name),
                "snapshot": found.snapshot_id,
                "state": found.state,
                "rows": found.rows,
                "files": found.files,
                "cutoff_time": found.cutoff_time,
                "error": found.error,
            }
            for name, found in zip(names, ended, strict=True)
        ]
    )
    raise typer.Exit(0 if all(found.state is SnapshotState.PUBLISHED for found in ended) else 1)
