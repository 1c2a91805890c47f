"""Reads where a server left its earlier timelines: how much of its former primary's log a promoted standby has."""

from contextlib import closing

from cdc_pipeline.sources.postgres.position import position_of
from cdc_pipeline.sources.postgres.session import answering, connect_for_replication

_FIELDS = 3


def end_of_timeline(url: str, *, timeline: int, of: int) -> int | None:
    """Returns the position at which the server, now on the timeline `of`, left `timeline`.

    Returns None if `timeline` is not in its history.
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
    return {int(line[0]): position_of(line[1]) for line in lines if len(line) >= _FIELDS and line[0].strip().isdigit()}
