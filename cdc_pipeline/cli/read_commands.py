"""The commands that show something: `status`, `verify`, `view`, `sql` and `schema`. `verify` also applies slices."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_pipeline.cli.context import CHECK_FAILED, POSTGRES_AND_SPARK, POSTGRES_ONLY, context_of, worst
from cdc_pipeline.cli.pipeline_commands import Json, Tables
from cdc_pipeline.cli.stack_commands import Config
from cdc_pipeline.errors import CdcError, UsageError
from cdc_pipeline.record import TableName

if TYPE_CHECKING:
    from cdc_pipeline.lake.protocol import LakeTable
    from cdc_pipeline.operations.verification import Verified
    from cdc_pipeline.wiring import Pipeline

Columns = Annotated[str | None, typer.Option("--columns", metavar="A,B,…", help="show only these columns")]
Against = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="CDC_AGAINST",
        show_envvar=False,
        help="compare with this database, which nobody writes to; also as CDC_AGAINST",
    ),
]
Timeout = Annotated[int, typer.Option(min=1, max=10_000_000, help="seconds to wait for the lake to reach the position")]
Wide = Annotated[bool, typer.Option("--wide", help="show all columns")]


def add_to(app: typer.Typer) -> None:
    app.command()(status)
    app.command()(verify)
    app.command()(view)
    app.command(name="sql")(run_query)
    app.command()(schema)


def status(
    config: Config = None,
    processes: Annotated[bool, typer.Option("--processes", help="show the processes instead of the tables")] = False,
    as_json: Json = False,
) -> None:
    """Show how far the lake is, per table.

    The time as of which the lake equals the source, what waits, and problems with their reasons.
    """
    context = context_of(config, as_json=as_json)
    if processes:
        from cdc_pipeline.launcher.display import process_documents

        context.show(process_documents(context.home), nothing="no process of this installation runs")
        return
    with context.pipeline(POSTGRES_ONLY) as pipeline:
        retained_log = describe_retained_log(pipeline)
        answer = pipeline.store.inspection.ask("lag")
        rows = answer.rows
        known = {row["source_table"] for row in rows}
        listed = [str(name) for name in pipeline.table_names()]
    rows += [_unregistered(name, answer.columns) for name in listed if name not in known]
    context.show(rows if as_json else [_short(row) for row in rows])
    if retained_log is not None:
        context.say(retained_log)


def verify(
    tables: Tables = None,
    config: Config = None,
    timeout: Timeout = 600,
    against: Against = None,
    as_json: Json = False,
) -> None:
    """Compare all rows of source and lake at one position.

    Compares every column that the source has now, and a table's history as of the position. First applies the slices up
    to the position, also of tables whose DAG is paused. Each table gets its own verdict. Exit code 3 when a table
    differs or could not be compared. With --against, the lake as it is now is compared with a database at rest, for a
    source that is no database; registered slices are applied first.
    """
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_AND_SPARK, command="verify") as pipeline:
        names = pipeline.table_names(tuple(tables or ()))
        if against is None:
            verdicts = pipeline.verification().verify(names, timeout=timedelta(seconds=timeout))
        else:
            from cdc_pipeline.wiring.against import verify_against

            verdicts = verify_against(pipeline, names, against)
    if as_json:
        context.show([_verdict(verdict) | {"differences": _differences(verdict)} for verdict in verdicts])
    else:
        differences = [found for verdict in verdicts for found in _differences(verdict)]
        is_equal = all(verdict.is_equal for verdict in verdicts)
        title = "lake equals source" if is_equal else "lake does NOT equal source"
        context.show([_verdict(verdict) for verdict in verdicts], title=title)
        if differences:
            context.show(differences)
    compared = (found for verdict in verdicts for found in (verdict.comparison, verdict.history))
    cut = next((found for found in compared if found is not None and found.is_cut), None)
    if cut is not None:
        context.say(f"only the first {len(cut.differences)} ids that differ are listed for each table; all are counted")
    raise typer.Exit(0 if all(verdict.is_equal for verdict in verdicts) else CHECK_FAILED)


def view(tables: Tables = None, config: Config = None, as_json: Json = False) -> None:
    """Print the Spark SQL of views for readers of the lake.

    A view leaves out deleted and incomplete rows. A table with a history has a second one. Two views of one name are
    not printed together.
    """
    from cdc_pipeline.lake.columns import history_of
    from cdc_pipeline.lake.reader_view import reader_view_sql

    context, unknown = context_of(config, as_json=as_json), list[CdcError]()
    statements, taken = dict[str, str](), dict[str, TableName]()
    with context.pipeline(POSTGRES_ONLY) as pipeline:
        for name in pipeline.table_names(tuple(tables or ())):
            try:
                table = pipeline.lake_table(name)
                for shown in (table, history_of(table)) if table.keeps_history else (table,):
                    names = pipeline.lake.read_columns(shown)
                    _take_view_name(shown, name, taken)
                    statements[str(shown.name)] = reader_view_sql(shown, pipeline.lake_url(shown.name), names)
            except CdcError as error:
                unknown.append(error)
    if as_json:
        context.show([{"table": name, "sql": sql} for name, sql in statements.items()])
    else:
        typer.echo("\n".join(f"{sql};" for sql in statements.values()))
    for found in unknown:
        context.say(f"error: {found}")
    raise typer.Exit(worst({found.exit_code for found in unknown}))


def _take_view_name(table: "LakeTable", listed: TableName, taken: dict[str, TableName]) -> None:
    """Raises UsageError if the view of another table of pipeline.yml has the name."""
    from cdc_pipeline.lake.reader_view import view_name

    name = view_name(table)
    other = taken.setdefault(name.lower(), listed)
    if other != listed:
        raise UsageError(
            f"the views of {other} and {listed} have the same name, {name}",
            expected="a name for each view",
            remedy=f"run cdc view {listed} by itself, and give the view another name in the statement",
        )


def _verdict(verdict: "Verified") -> dict[str, Any]:
    found = verdict.comparison
    return {
        "table": str(verdict.table),
        "verdict": "equal" if verdict.is_equal else "not compared" if found is None else "different",
        "source_rows": None if found is None else found.source_rows,
        "lake_rows": None if found is None else found.lake_rows,
        "differing_rows": None if found is None else found.differing_rows,
        "differing_in_history": None if verdict.history is None else verdict.history.differing_rows,
        "rows_withheld": verdict.rows_withheld,
        "problem": _problem_of(verdict),
        "position": verdict.position,
        "time": verdict.time,
    }


def _problem_of(verdict: "Verified") -> str | None:
    parts = [
        verdict.problem,
        verdict.columns_missing and f"columns missing in the lake: {', '.join(verdict.columns_missing)}",
        verdict.columns_extra and f"columns that the source does not have: {', '.join(verdict.columns_extra)}",
        verdict.why_withheld and f"rows withheld: {', '.join(verdict.why_withheld)}",
    ]
    return "; ".join(part for part in parts if part) or None


def _differences(verdict: "Verified") -> list[dict[str, Any]]:
    from cdc_pipeline.record import history_name

    return [
        {
            "table": str(name),
            "id": json.dumps(found.id, default=str),
            "kind": found.kind,
            "columns": list(found.columns),
        }
        for name, compared in ((verdict.table, verdict.comparison), (history_name(verdict.table), verdict.history))
        for found in (compared.differences if compared else ())
    ]


def run_query(
    name: Annotated[str | None, typer.Argument(help="an inspection query; default: list them")] = None,
    parameters: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="a parameter of the query")
    ] = None,
    config: Config = None,
    columns: Columns = None,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Run an inspection query on the metadata store."""
    from cdc_pipeline.metadata_store.inspection.queries import query_names

    context = context_of(config, as_json=as_json)
    with context.inspection() as inspection:
        answer = name and inspection.ask(name, dict(map(_parameter, parameters or ())))
    if not answer:
        context.show([{"query": query} for query in query_names()])
        return
    context.show(answer.rows, columns=columns, wide=wide, known=answer.columns)
    if answer.is_cut:
        context.say(f"only the first {len(answer.rows)} rows are shown; --set limit=… shows more")


def schema() -> None:
    """Print the JSON Schema of pipeline.yml for editors."""
    from cdc_pipeline.settings.file import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


def describe_retained_log(pipeline: "Pipeline") -> str | None:
    """One line about what the source keeps for the reader. None if it keeps nothing, or if that is unknown."""
    seen = pipeline.source_log().look()
    if seen is None or seen.retained_bytes is None:
        return None if seen is None else seen.warning
    return f"ALARM: {seen.warning}" if seen.warning else seen.summary


def _unregistered(name: str, columns: Sequence[str]) -> dict[str, Any]:
    """The row of a table that pipeline.yml lists but that is not registered, with the columns of the query."""
    filled = {"source_table": name, "reason": "it is not registered: run cdc setup-source, which names the reason"}
    return dict.fromkeys(columns) | filled


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "table": row["source_table"],
        "state": row.get("state"),
        "waiting": _waiting(row),
        "lake_as_of": row.get("lake_as_of"),
        "seconds_behind": row.get("seconds_behind"),
        "rows_withheld": row.get("rows_withheld") or None,
        "worker": row.get("lease_owner"),
        "problem": _problem(row),
    }


def _waiting(row: dict[str, Any]) -> str | None:
    slices, rows = row.get("slices_waiting"), row.get("rows_waiting")
    return f"{slices} slices, {rows or 0} rows" if slices else None


def _problem(row: dict[str, Any]) -> str | None:
    """Why the position does not advance, and what else is wrong."""
    next_try, incomplete = row.get("next_try_at"), row.get("rows_incomplete")
    parts = (
        row["reason"],
        f"next try {next_try:%H:%M:%S}Z" if next_try else None,
        f"{incomplete} rows are incomplete" if incomplete else None,
        "a repair of it was killed: repair it again"
        if row.get("under_repair") and not row.get("lease_owner")
        else None,
    )
    return "; ".join(part for part in parts if part) or None


def _parameter(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"--set {text!r} has no equals sign", expected="NAME=VALUE")
    return name, value
