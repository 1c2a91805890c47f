"""`cdc quarantine`: slice files that are damaged, events that could not be applied, and the ways out of it."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_pipeline.cli.context import POSTGRES_ONLY, context_of
from cdc_pipeline.cli.pipeline_commands import Json
from cdc_pipeline.cli.stack_verbs import Config
from cdc_pipeline.errors import UsageError

if TYPE_CHECKING:
    from cdc_pipeline.metadata_store.ledger.quarantine import QuarantineEntry
    from cdc_pipeline.operations.replay import Replayed
    from cdc_pipeline.wiring import Pipeline

STILL_KEPT = 3
Id = Annotated[int, typer.Argument(metavar="ID", help="as cdc quarantine ls shows it")]


class Shown(StrEnum):
    WAITING = "waiting"
    REPLAYED = "replayed"
    DROPPED = "dropped"
    ALL = "all"


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Events and slice files that could not be applied: look, replay, drop."
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
    state: Annotated[Shown, typer.Option(help="which of them")] = Shown.WAITING,
    as_json: Json = False,
) -> None:
    """The events that are kept aside, and why; no values of theirs."""
    from cdc_pipeline.metadata_store.models.states import QuarantineState

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
    """The slice files that are not what was registered. Put the right object back: the next try applies it."""
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY) as pipeline:
        named = None if table is None else str(*pipeline.table_names((table,)))
        rows = pipeline.store.inspection.run("damaged", {"table": named})
    context.show([{name: value for name, value in row.items() if name != "table_id"} for row in rows])


def show(quarantine_id: Id, config: Config = None, as_json: Json = False) -> None:
    """One event whole, with every value as the source's text."""
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY) as pipeline:
        entry = pipeline.store.quarantine.entry(quarantine_id)
        whole = _whole(entry, _table_names(pipeline))
    if as_json:
        context.show([whole])
        return
    values = whole.pop("payload")
    context.show([{"field": name, "value": value} for name, value in (whole | values).items()])


def replay(
    quarantine_ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...")] = None,
    config: Config = None,
    everything: Annotated[bool, typer.Option("--all", help="every event that waits")] = False,
    as_json: Json = False,
) -> None:
    """Decode events again as their tables are now; those that fit go with the next apply. Exit code 3: some stay."""
    from cdc_pipeline.metadata_store.models.states import QuarantineState
    from cdc_pipeline.operations.replay import replay as replay_events

    if everything == bool(quarantine_ids):
        raise UsageError("there is nothing chosen to replay", expected="either ids or --all")
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY) as pipeline:
        kept = pipeline.store.quarantine
        if everything:
            entries = kept.entries(state=QuarantineState.WAITING)
        else:
            entries = tuple(kept.entry(number) for number in dict.fromkeys(quarantine_ids or ()))
        outcomes = replay_events(pipeline, entries)
        names = _table_names(pipeline)
    context.show([_outcome(outcome, names) for outcome in outcomes])
    raise typer.Exit(_exit_code(outcomes))


def drop(
    quarantine_id: Id,
    reason: Annotated[str, typer.Option(help="why it is given up; it is kept with the event")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Give one event up for good: it is never applied, and stays to be read."""
    if not reason.strip():
        raise UsageError("the reason is empty", expected="why the event is given up")
    context = context_of(config, as_json=as_json)
    with context.pipeline(POSTGRES_ONLY) as pipeline:
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


def _whole(entry: "QuarantineEntry", names: dict[int, str]) -> dict[str, Any]:
    from cdc_pipeline.sources.event_texts import shown

    values = {name: None if text is None else shown(text) for name, text in entry.payload.items()}
    place = {
        "stream_partition": entry.stream_partition,
        "start_offset": entry.start_offset,
        "end_offset": entry.end_offset,
        "decided_at": entry.decided_at,
    }
    return {**_row(entry, names), **place, "payload": values}


def _outcome(outcome: "Replayed", names: dict[int, str]) -> dict[str, Any]:
    return {
        "id": outcome.kept.quarantine_id,
        "table": names[outcome.kept.table_id],
        "state": outcome.state.value,
        "slice": outcome.slice_number,
        "why": outcome.why or None,
    }


def _exit_code(outcomes: "Sequence[Replayed]") -> int:
    from cdc_pipeline.metadata_store.models.states import QuarantineState

    return 0 if all(outcome.state is QuarantineState.REPLAYED for outcome in outcomes) else STILL_KEPT
