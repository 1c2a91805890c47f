"""The table of marker messages on the source: one row per pipeline, whose changes the log shows to its reader.

The log has no messages of its own. A marker message is an update of the pipeline's row; its transaction has a position
like any other, at which the stream can be cut.
"""

from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from cdc_pipeline.sources.mysql.dialect import dialect_at
from cdc_pipeline.sources.mysql.session import HELD_UP, READ_ONLY, answering, quoted, rows

_CREATE = """CREATE TABLE IF NOT EXISTS {table} (
  pipeline VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
  message VARCHAR(500) CHARACTER SET utf8mb4 NOT NULL,
  sent BIGINT NOT NULL,
  begun MEDIUMTEXT CHARACTER SET ascii NOT NULL
) ENGINE=InnoDB"""
_BEGIN = "INSERT IGNORE INTO {table} (pipeline, message, sent, begun) VALUES ({pipeline}, '', 0, {end})"
_BEGIN_AGAIN = "UPDATE {table} SET begun = %s, sent = sent + 1 WHERE pipeline = %s"
_WAIT = "SET SESSION lock_wait_timeout = 10"
_SEND = "UPDATE {table} SET message = %s, sent = sent + 1 WHERE pipeline = %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerTable:
    """The table `database.table` and the row of this pipeline in it."""

    database: str
    table: str
    pipeline: str

    @property
    def sql(self) -> str:
        return quoted(self.database, self.table)

    def missing_statements(self, connection: "Connection[Any]") -> tuple[str, ...]:
        """Returns what has to be run before markers can be sent, in order. Changes nothing."""
        created = self._is_there(connection)
        begun = self.begun(connection) is not None
        known = rows(connection, "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (self.database,))
        end = dialect_at(connection).end_sql
        row = _BEGIN.format(table=self.sql, pipeline=connection.escape(self.pipeline), end=end)
        return (
            *(() if known else (f"CREATE DATABASE IF NOT EXISTS {quoted(self.database)}",)),
            *(() if created else (_CREATE.format(table=self.sql),)),
            *(() if begun else (row,)),
        )

    def begun(self, connection: "Connection[Any]") -> str | None:
        """Returns the text of the log's end as it was when the stream was set up, None before that."""
        if not self._is_there(connection):
            return None
        found = rows(connection, f"SELECT begun FROM {self.sql} WHERE pipeline = %s", (self.pipeline,))
        return str(found[0][0]) if found else None

    def begin_again(self, connection: "Connection[Any]", end: str) -> None:
        """Records a new beginning of the stream."""
        with connection.cursor() as cursor:
            cursor.execute(_BEGIN_AGAIN.format(table=self.sql), (end, self.pipeline))

    def send(self, connection: "Connection[Any]", text: str) -> int:
        """Commits a marker message. Returns the number of rows changed, which is 0 if the row is not there.

        Raises SourceAway while the server takes no writes, or another transaction has the row.
        """
        with answering(READ_ONLY | HELD_UP), connection.cursor() as cursor:
            return int(cursor.execute(_SEND.format(table=self.sql), (text, self.pipeline)))

    def leave(self, connection: "Connection[Any]") -> None:
        """Deletes the pipeline's row, and the table when it has no other. Idempotent.

        The row of a pipeline that begins meanwhile does not go with the table. Its set-up fails, and can be run again.
        """
        if not self._is_there(connection):
            return
        with connection.cursor() as cursor:
            cursor.execute(_WAIT)  # behind a lock that is waited for, all other pipelines wait
            cursor.execute(f"LOCK TABLES {self.sql} WRITE")
            cursor.execute(f"DELETE FROM {self.sql} WHERE pipeline = %s", (self.pipeline,))
            if not rows(connection, f"SELECT 1 FROM {self.sql} LIMIT 1"):
                cursor.execute(f"DROP TABLE {self.sql}")
            cursor.execute("UNLOCK TABLES")

    def _is_there(self, connection: "Connection[Any]") -> bool:
        found = rows(
            connection,
            "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            (self.database, self.table),
        )
        return bool(found)
