"""What stops a whole stream: a server or a slot that cannot serve what comes behind the registered position."""

from dataclasses import replace

import structlog

from cdc_pipeline.errors import SourceChanged, SourceGap
from cdc_pipeline.record import decode_position, encode_position
from cdc_pipeline.sources.postgres.catalogue import Server, Slot, read_server
from cdc_pipeline.sources.postgres.position import lsn_text
from cdc_pipeline.sources.postgres.session import session
from cdc_pipeline.sources.postgres.timelines import end_of_timeline
from cdc_pipeline.steps import step
from cdc_pipeline.wiring import Pipeline

log = structlog.get_logger()

_LOST = "lost"
BEGIN_AGAIN = "what came in between cannot be read: run cdc setup-source --begin-again, then cdc snapshot"


def refuse_other_server(pipeline: Pipeline, server: Server, slot: Slot | None) -> None:
    """Raises SourceChanged for another system, or another timeline of the same: its log may be another one.

    A standby that was promoted is followed when it has all that is registered, and a slot that still serves the rest.
    """
    name, streams = pipeline.settings.name, pipeline.store.streams
    registered = streams.next_offset(name)
    if registered is None:
        return
    known = streams.stream(name)
    if (known.source_system_identifier, known.source_timeline) == (server.system_identifier, server.timeline):
        return
    if server.system_identifier == known.source_system_identifier and server.timeline > known.source_timeline:
        left = end_of_timeline(pipeline.source_url, timeline=known.source_timeline, of=server.timeline)
        if left is not None and left >= decode_position(registered) and _serves(slot, registered):
            streams.follow(replace(known, source_timeline=server.timeline))
            log.warning("promoted standby followed", stream=name, timeline=server.timeline, left=lsn_text(left))
            return
    raise SourceChanged(
        f"the stream {name} comes from system {server.system_identifier}, timeline {server.timeline},"
        f" whose log ends at {lsn_text(server.end_position)}",
        expected=f"system {known.source_system_identifier}, timeline {known.source_timeline},"
        f" which is registered up to {_shown(registered)}",
        remedy=f"point source.url back; or, if this server is to be the source: {BEGIN_AGAIN}",
    )


def _serves(slot: Slot | None, registered: str) -> bool:
    """Whether it was copied from the primary before it could miss anything."""
    if slot is None or slot.wal_status == _LOST or slot.confirmed_position is None:
        return False
    return slot.confirmed_position <= decode_position(registered)


def refuse_gap(pipeline: Pipeline, slot: Slot | None, server: Server) -> None:
    """Raises SourceGap for a slot that is gone, given up or ahead, SourceChanged for a log that was set back."""
    name = pipeline.settings.postgres.slot
    registered = pipeline.store.streams.next_offset(pipeline.settings.name)
    if registered is None:
        return
    if slot is None or slot.wal_status == _LOST or slot.confirmed_position is None:
        lost_by = f" ({slot.lost_by})" if slot is not None and slot.lost_by else ""
        found = "is gone" if slot is None else f"has lost its log{lost_by}"
        raise SourceGap(
            f"the slot {name} {found}, and the source's log ends at {lsn_text(server.end_position)}",
            expected=f"a slot that serves position {_shown(registered)}",
            remedy=BEGIN_AGAIN,
        )
    if slot.confirmed_position > decode_position(registered):
        raise SourceGap(
            f"the slot {name} stands at {_shown(encode_position(slot.confirmed_position))}: somebody else read it",
            expected=f"a slot that still serves the next offset {_shown(registered)}",
            remedy=BEGIN_AGAIN,
        )
    if server.end_position < decode_position(registered):
        # Another consumer may have registered more since `server` was read, if this one stood still in between.
        end = _end_of_log(pipeline)
        if end >= decode_position(registered):
            return
        raise SourceChanged(
            f"the source's log ends at {lsn_text(end)}: the server was set back",
            expected=f"a log that reaches {_shown(registered)}, up to which it is registered",
            remedy=BEGIN_AGAIN,
        )


def _end_of_log(pipeline: Pipeline) -> int:
    with step(pipeline.on_step, "source.check"), session(pipeline.source_url) as connection:
        return read_server(connection).end_position


def _shown(offset: str) -> str:
    return lsn_text(decode_position(offset))
