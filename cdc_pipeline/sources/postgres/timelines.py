"""A server's timelines and where each was left: how much of its primary's log a promoted standby has."""

from contextlib import closing

from cdc_pipeline.sources.postgres.position import position_of
from cdc_pipeline.sources.postgres.session import answering, connect_for_replication

_FIELDS = 3


def end_of_timeline(url: str, *, timeline: int, of: int) -> int | None:
    """Where the server, which is on the timeline `of`, left `timeline`; None when that is none of its past."""
    with answering(), closing(connect_for_replication(url)) as connection, connection.cursor() as cursor:
        cursor.execute(f"TIMELINE_HISTORY {of}")
        row = cursor.fetchone()
    if row is None:
        return None
    history = row[1] if isinstance(row[1], str) else bytes(row[1]).decode()
    return switch_points(history).get(timeline)


def switch_points(history: str) -> dict[int, int]:
    """Of a timeline history file: number of each earlier timeline -> the position behind its last record."""
    lines = (line.split("\t") for line in history.splitlines())
    return {int(line[0]): position_of(line[1]) for line in lines if len(line) >= _FIELDS and line[0].strip().isdigit()}
