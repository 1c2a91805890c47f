"""Begins a consistent snapshot whose place in the log is known exactly: no transaction is missing, none comes twice.

MariaDB shows the place with the snapshot. MySQL does not, so it has to be found: docs/reference/sources/mysql.md
(snapshots) says how, and why it is exact.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pymysql.err import MySQLError

from cdc_pipeline.errors import SnapshotError
from cdc_pipeline.sources.mysql.gtid import last_gtid
from cdc_pipeline.sources.mysql.gtid_set import GtidSet, LogPlace, parse_gtid_set
from cdc_pipeline.sources.mysql.session import rows, text_of

if TYPE_CHECKING:
    from pymysql.connections import Connection

QUIET_MOMENT = timedelta(seconds=3)
"""How long a moment without commits is waited for before the global read lock is taken."""
LOCK_WAIT = timedelta(seconds=5)
"""How long the lock is waited for, while it blocks writers already."""
_LONGER = timedelta(seconds=30)
"""How long it is waited for if the user may not take the lock."""
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
_START = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
_OWNED, _EXECUTED = "SELECT @@GLOBAL.gtid_owned", "SELECT @@GLOBAL.gtid_executed"
_NO_RIGHT = frozenset({1227, 1045})
"""The second one is how Amazon RDS refuses the lock to everybody."""
_NO_LOCK = 1205


def begin_on_mariadb(connection: "Connection[Any]") -> LogPlace | None:
    """Begins the snapshot. Returns its place, from the log file and offset that the server noted with it."""
    for statement in (_ISOLATION, _START):
        rows(connection, statement)
    noted = dict(rows(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
    file, place = noted.get(b"Binlog_snapshot_file"), noted.get(b"Binlog_snapshot_position")
    if not file or not place:
        raise SnapshotError("the source gave no position with its snapshot", remedy="run the same command again")
    found = rows(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (file.decode(), int(place)))[0][0]
    if found is None:
        raise SnapshotError(
            f"the source does not know the position of {file.decode()}:{int(place)}",
            expected="the log file of the snapshot",
            remedy="run the same command again",
        )
    return last_gtid(found.decode())


def begin_on_mysql(
    connection: "Connection[Any]", quiet_moment: timedelta = QUIET_MOMENT, lock_wait: timedelta = LOCK_WAIT
) -> LogPlace:
    """Begins the snapshot in a moment without commits, after `quiet_moment` under a global read lock.

    Raises SnapshotError if there is no such moment and no lock.
    """
    rows(connection, _ISOLATION)
    found = _between_commits(connection, quiet_moment) or _under_lock(connection, lock_wait)
    return found or _between_commits(connection, _LONGER) or _refuse_busy()


def _between_commits(connection: "Connection[Any]", wait: timedelta) -> GtidSet | None:
    """Returns the exact set of the snapshot that it began, None if commits followed each other all the time."""
    end = time.monotonic() + wait.total_seconds()
    before = text_of(connection, _EXECUTED)
    while time.monotonic() < end:
        rows(connection, _START)
        owned = text_of(connection, _OWNED)
        after = text_of(connection, _EXECUTED)
        if not owned and before == after:
            return parse_gtid_set(after)
        before = after
    return None


def _under_lock(connection: "Connection[Any]", wait: timedelta) -> GtidSet | None:
    """Returns the exact set of a snapshot that began while nobody could commit, None without the right to do so."""
    try:
        with _locked(connection, wait):
            rows(connection, _START)
            return parse_gtid_set(text_of(connection, _EXECUTED))
    except MySQLError as error:
        if error.args[0] in _NO_RIGHT:
            return None
        if error.args[0] == _NO_LOCK:
            raise SnapshotError(
                f"the source did not give a global read lock within {wait.total_seconds():.0f} s",
                expected="no statement that runs for long while a snapshot begins",
                remedy="end long statements (SHOW PROCESSLIST), then run the same command again",
            ) from error
        raise


@contextmanager
def _locked(connection: "Connection[Any]", wait: timedelta) -> Iterator[None]:
    """Holds the lock while the block runs. Releasing it does not end a transaction that began in the block."""
    rows(connection, f"SET SESSION lock_wait_timeout = {wait.total_seconds():.0f}")
    try:
        rows(connection, "FLUSH TABLES WITH READ LOCK")
        yield
    finally:
        rows(connection, "UNLOCK TABLES")
        rows(connection, "SET SESSION lock_wait_timeout = DEFAULT")


def _refuse_busy() -> LogPlace:
    raise SnapshotError(
        "transactions commit on the source without a pause, so the position of a snapshot is not known",
        expected="a moment without a commit, or a global read lock, which makes one",
        remedy="try again when less is written; or run GRANT RELOAD ON *.* TO the pipeline's user, as an administrator,"
        " which does not help on Amazon RDS: nobody gets the lock there",
    )
