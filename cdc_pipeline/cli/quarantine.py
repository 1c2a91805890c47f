"""`cdc quarantine`: events that could not be applied and damaged slice files: list, show, replay, drop."""

from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_pipeline.cli.context import POSTGRES_ONLY, context_of
from cdc_pipeline.cli.pipeline_commands import Json
from cdc_pipeline.cli.stack_commands import Config
from cdc_pipeline.errors import UsageError

if TYPE_CHECKING:
    from cdc_pipeline.metadata_store.ledger.quarantine import QuarantineEntry
    from cdc_pipeline.operations.replay import Replayed
    from cdc_pipeline.wiring import Pipeline

STILL_QUARANTINED = 3
Id = Annotated[int, typer.Argument(metavar="ID", help="from cdc quarantine ls")]
Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="from cdc quarantine ls")]


class Shown(StrEnum):
    WAITING = "waiting"
    REPLAYED = "replayed"
    DROPPED = "dropped"
    ALL = "all"


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="List, replay and drop events that could not be applied.",
    )
    group.command(name="ls")(list_events)
    group.command(name="files")(list_files)
    group.command()(show)
    group.command()(replay)
    group.command()(drop)
    app.add_typer(group, name="quarantine")


def list_events(
    table: Annotated[str | None, typer.Argument(help="db.schema.table; default: all")] = None,
    config: Config = None,
    state: Annotated[Shown, typer.Option(help="show only events in this state")] = Shown.WAITING,
    limit: Annotated[int, typer.Option(min=1, max=10_000_000, help="show at most this many, also with --json")] = 100,
    as_json: Json = False,
) -> None:
    """List the newest quarantined events with their reasons, without values."""
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY) as pipeline:
        named = None if table is None else str(*pipeline.table_names((table,)))
        chosen = None if state is Shown.ALL else state.value
        answer = pipeline.store.inspection.ask("quarantine", {"table": named, "state": chosen, "limit": limit})
    context.show([_row(row) for row in reversed(answer.rows)])
    if answer.is_cut:
        context.say(f"only the newest {len(answer.rows)} events are shown; --limit shows more, cdc status counts them")


def list_files(
    table: Annotated[str | None, typer.Argument(help="db.schema.table; default: all")] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List slice files that differ from what was registered.

    Put the right object back under its key: the next try applies it.
    """
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY) as pipeline:
        named = None if table is None else str(*pipeline.table_names((table,)))
        rows = pipeline.store.inspection.run("damaged", {"table": named})
    context.show([{name: value for name, value in row.items() if name != "table_id"} for row in rows])


def show(quarantine_id: Id, config: Config = None, as_json: Json = False) -> None:
    """Show one event with all its values.

    Values are shown as the source's text.
    """
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY) as pipeline:
        entry = pipeline.store.quarantine.entry(quarantine_id)
        event = _full_row(entry, _table_names(pipeline))
    if as_json:
        context.show([event])
        return
    values = event.pop("payload")
    context.show([event])
    typer.echo()
    context.show([{"field": name, "value": "NULL" if value is None else value} for name, value in values.items()])


def replay(
    quarantine_ids: Ids = None,
    config: Config = None,
    everything: Annotated[bool, typer.Option("--all", help="all waiting events")] = False,
    as_json: Json = False,
) -> None:
    """Decode events again with the current columns of their tables.

    Events that fit now are registered as a slice, which the next apply takes. Exit code 3 when an event was not
    replayed: it still does not fit, it was dropped, or its table is busy or gone.
    """
    from cdc_pipeline.metadata_store.states import QuarantineState

    if everything == bool(quarantine_ids):
        raise UsageError("there are no ids and no --all, or both", expected="either ids or --all")
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY, command="quarantine replay") as pipeline:
        quarantine, names = pipeline.store.quarantine, _table_names(pipeline)
        replay = pipeline.replay()
        replayed = replay.run_waiting() if everything else replay.run(quarantine.chosen(quarantine_ids or ()))
        names |= _table_names(pipeline)  # a table may be new, or removed meanwhile
        outcomes = [_outcome(outcome, names) for outcome in replayed]
    context.show(outcomes)
    raise typer.Exit(0 if all(row["state"] == QuarantineState.REPLAYED for row in outcomes) else STILL_QUARANTINED)


def drop(
    reason: Annotated[str, typer.Option(help="why they are dropped; stored with each event")],
    quarantine_ids: Ids = None,
    config: Config = None,
    everything: Annotated[
        str | None, typer.Option("--all", metavar="TABLE", help="all waiting events of TABLE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Mark events as never to be applied.

    They stay readable until `keep.quarantine` of pipeline.yml has passed.
    """
    if (everything is None) != bool(quarantine_ids):
        raise UsageError("there are no ids and no --all TABLE, or both", expected="either ids or --all TABLE")
    if not reason.strip():
        raise UsageError("the reason is empty", expected="why the event is dropped")
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY) as pipeline:
        replay = pipeline.replay()
        if everything is None:
            dropped, names = replay.drop(quarantine_ids or (), reason), _table_names(pipeline)
            rows = [_row_of(entry, names) for entry in dropped]
        else:
            (table,) = pipeline.table_names((everything,))
            rows = [{"table": str(table), "dropped": replay.drop_waiting_of(table, reason)}]
    context.show(rows)


def _table_names(pipeline: "Pipeline") -> dict[int, str]:
    return {table.table_id: str(table.name) for table in pipeline.store.tables.tables()}


def _row(event: Mapping[str, Any]) -> dict[str, Any]:
    """`event`: columns of v_quarantine."""
    return {
        "id": event["quarantine_id"],
        "table": event["source_table"],
        "state": event["state"],
        "column": event["column"],
        "reason": event["reason"],
        "version": event["version"],
        "since": event["created_at"],
        "snapshot": event["snapshot_id"],
        "slice": event["slice_number"],
        "decision": event["decision"],
    }


def _row_of(entry: "QuarantineEntry", names: dict[int, str]) -> dict[str, Any]:
    return _row(asdict(entry) | {"source_table": names[entry.table_id]})


def _full_row(entry: "QuarantineEntry", names: dict[int, str]) -> dict[str, Any]:
    from cdc_pipeline.sources.event_texts import shown

    values = {name: None if text is None else shown(text) for name, text in entry.payload.items()}
    origin = {
        "stream_partition": entry.stream_partition,
        "start_offset": entry.start_offset,
        "end_offset": entry.end_offset,
        "decided_at": entry.decided_at,
    }
    return {**_row_of(entry, names), **origin, "payload": values}


def _outcome(outcome: "Replayed", names: dict[int, str]) -> dict[str, Any]:
    return {
        "id": outcome.quarantine_id,
        "table": names[outcome.table_id],
        "state": outcome.state.value,
        "slice": outcome.slice_number,
        "why": outcome.why or None,
    }
