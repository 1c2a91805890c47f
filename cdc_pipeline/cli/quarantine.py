"""`cdc quarantine`: events that could not be applied and damaged slice files: list, show, replay, drop."""

from collections.abc import Sequence
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
    as_json: Json = False,
) -> None:
    """List quarantined events with their reasons, without values."""
    from cdc_pipeline.metadata_store.states import QuarantineState

    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY) as pipeline:
        named = None if table is None else pipeline.store.tables.table(*pipeline.table_names((table,))).table_id
        chosen = None if state is Shown.ALL else QuarantineState(state.value)
        entries = pipeline.store.quarantine.entries(table_id=named, state=chosen)
        names = _table_names(pipeline)
    context.show([_row(entry, names) for entry in entries])


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
    context.show([{"field": name, "value": value} for name, value in (event | values).items()])


def replay(
    quarantine_ids: Annotated[
        list[int] | None, typer.Argument(metavar="[ID]...", help="from cdc quarantine ls")
    ] = None,
    config: Config = None,
    everything: Annotated[bool, typer.Option("--all", help="all waiting events")] = False,
    as_json: Json = False,
) -> None:
    """Decode events again with the current columns of their tables.

    Events that fit now are registered as a slice, which the next apply takes. Exit code 3 when some stay quarantined.
    """
    from cdc_pipeline.metadata_store.states import QuarantineState

    if everything == bool(quarantine_ids):
        raise UsageError("there are no ids and no --all, or both", expected="either ids or --all")
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY, command="quarantine replay") as pipeline:
        quarantine = pipeline.store.quarantine
        if everything:
            entries = quarantine.entries(state=QuarantineState.WAITING)
        else:
            entries = tuple(quarantine.entry(number) for number in dict.fromkeys(quarantine_ids or ()))
        outcomes = pipeline.replay().run(entries)
        names = _table_names(pipeline)
    context.show([_outcome(outcome, names) for outcome in outcomes])
    raise typer.Exit(_exit_code(outcomes))


def drop(
    quarantine_id: Id,
    reason: Annotated[str, typer.Option(help="why it is dropped; stored with the event")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Mark one event as never to be applied.

    It stays readable until `keep.quarantine` of pipeline.yml has passed.
    """
    if not reason.strip():
        raise UsageError("the reason is empty", expected="why the event is dropped")
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY) as pipeline:
        pipeline.cut_chain().catch_up()  # a replay that was killed may have been decided
        entry = pipeline.store.quarantine.drop(quarantine_id, reason)
        names = _table_names(pipeline)
    context.show([_row(entry, names)])


def _table_names(pipeline: "Pipeline") -> dict[int, str]:
    return {table.table_id: str(table.name) for table in pipeline.store.tables.tables()}


def _row(entry: "QuarantineEntry", names: dict[int, str]) -> dict[str, Any]:
    return {
        "id": entry.quarantine_id,
        "table": names[entry.table_id],
        "state": entry.state.value,
        "column": entry.column,
        "reason": entry.reason,
        "version": entry.version,
        "since": entry.created_at,
        "snapshot": entry.snapshot_id,
        "slice": entry.slice_number,
        "decision": entry.decision,
    }


def _full_row(entry: "QuarantineEntry", names: dict[int, str]) -> dict[str, Any]:
    from cdc_pipeline.sources.event_texts import shown

    values = {name: None if text is None else shown(text) for name, text in entry.payload.items()}
    origin = {
        "stream_partition": entry.stream_partition,
        "start_offset": entry.start_offset,
        "end_offset": entry.end_offset,
        "decided_at": entry.decided_at,
    }
    return {**_row(entry, names), **origin, "payload": values}


def _outcome(outcome: "Replayed", names: dict[int, str]) -> dict[str, Any]:
    return {
        "id": outcome.kept.quarantine_id,
        "table": names[outcome.kept.table_id],
        "state": outcome.state.value,
        "slice": outcome.slice_number,
        "why": outcome.why or None,
    }


def _exit_code(outcomes: "Sequence[Replayed]") -> int:
    from cdc_pipeline.metadata_store.states import QuarantineState

    return 0 if all(outcome.state is QuarantineState.REPLAYED for outcome in outcomes) else STILL_QUARANTINED
