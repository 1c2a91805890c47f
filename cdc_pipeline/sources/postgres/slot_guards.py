"""Checks that server and slot can serve everything after the registered position; if not, the whole stream stops."""

from collections.abc import Callable
from contextlib import closing

import structlog

from cdc_pipeline.errors import SourceChanged, SourceError, SourceGap
from cdc_pipeline.record import decode_position, encode_position, parse_lsn
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.sources.known import StreamIdentity
from cdc_pipeline.sources.postgres.catalogue import Server, Slot
from cdc_pipeline.sources.postgres.position import lsn_text
from cdc_pipeline.sources.postgres.session import answering, connect_for_replication
from cdc_pipeline.sources.postgres.statements import needs_lock

log = structlog.get_logger()

_LOST = "lost"
_HISTORY_FIELDS = 3
_PASSES_OVER = 180_000
"""From this version on, a slot passes over the changes from before its publication existed."""
BEGIN_AGAIN = "what came in between cannot be read: run cdc setup-source --begin-again, then cdc snapshot"


def is_successor(
    server: Server, slot: Slot | None, *, url: str, stream: str, known: StreamIdentity | None, registered: str | None
) -> bool:
    """Returns whether the server is not the registered one, but continues its log without a gap.

    A promoted standby does so if its log has everything that is registered, and its slot still serves the rest. False
    for the registered server, and for a stream that was never read. Raises SourceChanged for any other server, since
    its log may be a different one.
    """
    if known is None or registered is None or (known.system, known.timeline) == identity_of(server):
        return False
    if server.system_identifier == known.system and server.timeline > known.timeline:
        left = end_of_timeline(url, timeline=known.timeline, of=server.timeline)
        if left is not None and left >= decode_position(registered) and _serves(slot, registered):
            log.warning("promoted standby followed", stream=stream, timeline=server.timeline, left=lsn_text(left))
            return True
    raise SourceChanged(
        f"the stream {stream} comes from system {server.system_identifier}, timeline {server.timeline},"
        f" whose log ends at {lsn_text(server.end_position)}",
        expected=f"system {known.system}, timeline {known.timeline}, which is registered up to {_shown(registered)}",
        remedy=f"point source.url back; or, if this server is to be the source: {BEGIN_AGAIN}",
    )


def check_publication_first(source: PostgresSource, slot: Slot | None, server: Server, *, is_published: bool) -> None:
    """Raises SourceError for a slot without its publication: it cannot read changes from before that is created."""
    if slot is not None and not is_published and server.version_number < _PASSES_OVER:
        raise SourceError(
            f"the slot {source.slot} was created before its publication {source.publication}",
            expected=f"the publication first: PostgreSQL {server.version_number // 10_000} reads no change from before",
            remedy=f"run SELECT pg_drop_replication_slot('{source.slot}'), then cdc setup-source; to create the slot"
            " yourself, do it after the publication",
        )


def refuse_new_publication(source: PostgresSource, server: Server, *, is_published: bool) -> None:
    """Raises SourceGap for a registered stream whose publication is gone, if a new one could lack changes.

    Behind a transaction that wrote any table before, decoding goes on with the publication that is gone. So a lock on
    the tables of the new one would not help.
    """
    if not is_published and needs_lock(server.version_number):
        raise SourceGap(
            f"the publication {source.publication} does not exist",
            expected=f"the publication of the slot {source.slot}: before its release of May 2025 the server may leave"
            " out changes of a new one",
            remedy="run cdc setup-source --begin-again, then cdc snapshot",
        )


def identity_of(server: Server) -> tuple[str, int]:
    return server.system_identifier, server.timeline


def end_of_timeline(url: str, *, timeline: int, of: int) -> int | None:
    """Returns the position at which the server, now on the timeline `of`, left `timeline`.

    So much of its former primary's log a promoted standby has. Returns None if `timeline` is not in its history.
    """
    with answering(), closing(connect_for_replication(url)) as connection, connection.cursor() as cursor:
        cursor.execute(f"TIMELINE_HISTORY {of}")
        row = cursor.fetchone()
    if row is None:
        return None
    history = row[1] if isinstance(row[1], str) else bytes(row[1]).decode()
    return switch_points(history).get(timeline)


def switch_points(history: str) -> dict[int, int]:
    """Parses a timeline history file. Returns, by timeline, the position after its last record."""
    lines = (line.split("\t") for line in history.splitlines())
    return {
        int(line[0]): parse_lsn(line[1]) for line in lines if len(line) >= _HISTORY_FIELDS and line[0].strip().isdigit()
    }


def _serves(slot: Slot | None, registered: str) -> bool:
    """Returns whether the slot still serves everything after the registered offset."""
    if slot is None or slot.wal_status == _LOST or slot.confirmed_position is None:
        return False
    return slot.confirmed_position <= decode_position(registered)


def refuse_gap(name: str, slot: Slot | None, server: Server, registered: str, end_of_log: Callable[[], int]) -> None:
    """Raises SourceGap for a slot that is gone, lost or ahead, SourceChanged for a server whose log was set back.

    `registered`: the next offset. Read it after the slot: a running consumer moves both, the offset first. `end_of_log`
    reads the end of the server's log again.
    """
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
        # If this process paused after it read `server`, another consumer may have registered more meanwhile.
        end = end_of_log()
        if end >= decode_position(registered):
            return
        raise SourceChanged(
            f"the source's log ends at {lsn_text(end)}: the server was set back",
            expected=f"a log that reaches {_shown(registered)}, up to which it is registered",
            remedy=BEGIN_AGAIN,
        )


def _shown(offset: str) -> str:
    return lsn_text(decode_position(offset))
