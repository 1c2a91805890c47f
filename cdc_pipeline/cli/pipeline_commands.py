"""Commands that change data.

`setup-source`, `consume`, `work`, `repair`, `rebuild`, `remove`, `rewind`, `maintain`, and `clean`.
"""

import os
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Annotated

import typer

from cdc_pipeline.cli.context import POSTGRES_AND_SPARK, POSTGRES_ONLY, context_of, log_to_stderr, plain_line, worst
from cdc_pipeline.cli.ending import stopped_in_time
from cdc_pipeline.cli.stack_commands import Config
from cdc_pipeline.errors import UsageError
from cdc_pipeline.record import TableName

Tables = Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...", help="db.schema.table; default: all")]
Json = Annotated[bool, typer.Option("--json", help="print the result as JSON")]
UntilIdle = Annotated[bool, typer.Option("--until-idle", help="stop when all that is there now is done")]

_POLL_SECONDS = 1.0


def add_to(app: typer.Typer) -> None:
    app.command(name="setup-source")(setup_source)
    app.command()(consume)
    app.command()(work)
    app.command()(repair)
    app.command()(rewind)
    app.command()(rebuild)
    app.command()(remove)
    app.command()(maintain)
    app.command()(clean)


def setup_source(
    config: Config = None,
    print_sql: Annotated[bool, typer.Option("--print-sql", help="print the SQL statements and change nothing")] = False,
    begin_again: Annotated[
        bool,
        typer.Option("--begin-again", help="begin at the log's present end; every table then needs a new snapshot"),
    ] = False,
    unattended: Annotated[
        bool, typer.Option("--unattended", help="take the tables that the last set-up found; one ready table is enough")
    ] = False,
) -> None:
    """Make the source ready, and register the tables.

    Prints what was done, and each table that cannot be read with the reason. Exit code 1 when there is such a table.
    """
    if print_sql and begin_again:
        raise UsageError("there are both --print-sql and --begin-again", expected="one of them")
    context = context_of(config, as_json=False)
    settings = None if unattended else context.matched_settings(keep=not print_sql)
    if print_sql:
        with context.pipeline(POSTGRES_ONLY, settings) as pipeline:
            statements = pipeline.source_setup().missing_sql()
        typer.echo("".join(f"{statement};\n" for statement in statements), nl=False)
        return
    with context.pipeline(POSTGRES_ONLY, settings, command="setup-source") as pipeline:
        setup = pipeline.source_setup()
        prepared = setup.begin_stream_again() if begin_again else setup.set_up()
        for statement in prepared.statements:
            context.say(f"done: {statement}")
        names = ", ".join(map(str, prepared.tables))
        words = "the stream begins again; run cdc snapshot for these tables" if begin_again else "ready"
        context.say(f"{words}: {names}")
        for name, refused in prepared.refused.items():
            context.say(f"not ready: {name}: {refused}")
    if prepared.refused and not (unattended and prepared.tables):
        raise typer.Exit(1)


def consume(config: Config = None, until_idle: UntilIdle = False) -> None:
    """Read the change stream into registered slice files.

    Runs until SIGTERM or Ctrl-C.
    """
    from cdc_pipeline.launcher.heartbeat import Heartbeat
    from cdc_pipeline.operations.source_setup.reading import retried

    context = context_of(config, as_json=False)
    with stopped_in_time() as stop:
        if until_idle:
            with (
                context.shown_steps("consume", POSTGRES_ONLY) as on_step,
                context.opened_pipeline(POSTGRES_ONLY, on_step=on_step) as pipeline,
            ):
                pipeline.consumer_runs().consume_until_idle()
            return

        heartbeat = Heartbeat(os.environ)

        def read() -> None:
            with context.opened_pipeline(POSTGRES_ONLY, on_step=heartbeat.on_step) as pipeline:
                pipeline.consumer_runs().consume(stop, heartbeat.beat)

        retried(read, stop, heartbeat.beat)


def work(
    config: Config = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="stop when no request waits")] = False,
) -> None:
    """Run a resident worker, which applies slices for Airflow, several tables side by side.

    Runs until SIGTERM or Ctrl-C. Any number of resident workers may run, on any machine.
    """
    from cdc_pipeline.launcher.heartbeat import Heartbeat
    from cdc_pipeline.operations.resident_worker import RunLines
    from cdc_pipeline.operations.source_setup.reading import retried

    context = context_of(config, as_json=False)
    lines, heartbeat = RunLines(plain_line), Heartbeat(os.environ)
    log_to_stderr(lines)
    with stopped_in_time() as stop:

        def take_requests() -> None:
            settings = context.settings
            with context.opened_pipeline(POSTGRES_AND_SPARK, settings) as pipeline:
                worker = pipeline.resident_worker(lines, lambda: context.has(settings))
                worker.work(stop, heartbeat.beat, until_idle=until_idle)

        if until_idle:
            take_requests()
        while not until_idle and not stop.is_set():
            retried(take_requests, stop, heartbeat.beat, words="no request is taken")


def repair(
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="db.schema.table")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Write the rows in which the lake differs from the source.

    No other rows are written. Rows that the lake cannot hold are left alone and counted as withheld. The stream may go
    on meanwhile. Exit code 1 when a table could not be repaired.
    """
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_AND_SPARK, command="repair") as pipeline:
        repaired = pipeline.repair().run_each(pipeline.table_names(tuple(tables)))
    context.show([{**asdict(found), "table": str(found.table)} for found in repaired])
    raise typer.Exit(1 if any(found.problem for found in repaired) else 0)


def rebuild(config: Config = None, as_json: Json = False) -> None:
    """Rebuild the metadata store from the bucket and the lake.

    What only an existing store knows is kept.
    """
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY, command="rebuild") as pipeline:
        tables = pipeline.rebuild().run()
    context.show([{**asdict(found), "table": str(found.table), "notes": "; ".join(found.notes)} for found in tables])


def remove(
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="db.schema.table")] = None,
    config: Config = None,
    pipeline_too: Annotated[bool, typer.Option("--pipeline", help="the whole pipeline instead of one table")] = False,
    lake: Annotated[bool, typer.Option("--lake", help="also delete slices, snapshots and the lake's tables")] = False,
    source_is_gone: Annotated[
        bool, typer.Option("--source-is-gone", help="with --pipeline: do not connect to the source")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove a table that pipeline.yml no longer lists, or all.

    Takes it out of the source's publication and the metadata store; --pipeline drops what set-up created on the
    source, and all metadata.
    Statements that the pipeline's role may not run are printed for an administrator.
    """
    if (table is None) is not pipeline_too:
        raise UsageError("not exactly one of TABLE and --pipeline was given", expected="one of them")
    if source_is_gone and not pipeline_too:
        raise UsageError(
            f"--source-is-gone with the table {table}",
            expected="--pipeline instead of a table: to remove one table changes the source",
            remedy="leave out --source-is-gone, or remove the whole pipeline",
        )
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY, command="remove") as pipeline:
        if table is None:
            removed = pipeline.removal().remove_pipeline(with_lake=lake, source_is_gone=source_is_gone)
        else:
            removed = pipeline.removal().remove_table(_parsed(table), with_lake=lake)
    left = "".join(f"{statement};\n" for statement in removed.left_to_do)
    shown: dict[str, object] = {"was_known": removed.was_known, "objects_deleted": removed.objects}
    if as_json:
        shown["left_to_do"] = left
    context.show([{"table": str(name), **shown} for name in removed.tables])
    if left and not as_json:
        context.say("left to do, for an administrator of the source:")
        typer.echo(left, nl=False)


def _parsed(name: str) -> TableName:
    try:
        return TableName.parse(name)
    except ValueError as error:
        raise UsageError(str(error), expected="the name as pipeline.yml listed it") from error


def rewind(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="db.schema.table")],
    to: Annotated[str, typer.Option("--to", help="a position (0/8D3FAF8) or a time (2026-01-31T12:00:00Z)")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Set a table of the lake back to an earlier position or time.

    It goes back to the end of the last claim at or before that point. Later slices wait to be applied again.
    """
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY, command="rewind") as pipeline:
        (name,) = pipeline.table_names((table,))
        found = pipeline.rewind().run(name, to)
    context.show([{**asdict(found), "table": str(found.table)}])


def maintain(
    tables: Tables = None,
    config: Config = None,
    timeout: Annotated[int, typer.Option(min=0, max=10_000_000, help="seconds to wait for a table that is busy")] = 60,
    as_json: Json = False,
) -> None:
    """Merge the lake's small files, and delete tombstones and unused files.

    It does to each table what the task maintain_table of the DAG cdc_maintenance does once a day, as `maintenance` in
    pipeline.yml says. A table that fails does not stop the others.
    Exit code 4: another process works on a table, and no table failed.
    """
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_AND_SPARK, command="maintain") as pipeline:
        maintenance = replace(pipeline.maintenance(), timeout=timedelta(seconds=timeout))
        results = maintenance.maintain_each(pipeline.table_names(tuple(tables or ())))
    context.show([result.row() for result in results])
    raise typer.Exit(worst({result.exit_code for result in results}))


def clean(
    config: Config = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be deleted and delete nothing")] = False,
    as_json: Json = False,
) -> None:
    """Delete files and metadata that are no longer needed.

    Only what is older than `keep` in pipeline.yml: slice files, cut files, snapshot files, and rows of the metadata
    store.
    """
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY, command="clean") as pipeline:
        cleaning = pipeline.cleanup().clean(dry_run=dry_run)
    context.show([asdict(found) for found in cleaning.kinds])
    for table, reason in cleaning.held_by.items():
        context.say(f"cut files are not deleted because of {table}: {reason}")
