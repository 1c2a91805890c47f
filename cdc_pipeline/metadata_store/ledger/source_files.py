"""Source files that were begun, each with its number in its stream partition."""

from dataclasses import dataclass

from sqlalchemy import func, insert, select

from cdc_pipeline.metadata_store import models
from cdc_pipeline.metadata_store.database import Database
from cdc_pipeline.metadata_store.ledger.records import Assignment
from cdc_pipeline.metadata_store.ledger.streams import check_owner

_FILE = models.source_file


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """Started files are never deleted from the store: a file in its folder counts as new if its name is not stored."""

    database: Database

    def begin_file(self, assignment: Assignment, stream_partition: int, name: str) -> int:
        """Registers a source file that is read from now on; returns its number, one more than that of the last file.

        Idempotent by the file's name. Raises StaleEpoch when another owner took the stream.
        """
        of_partition = (_FILE.c.stream == assignment.stream) & (_FILE.c.stream_partition == stream_partition)
        with self.database.transaction("stream.begin_file") as connection:
            check_owner(connection, assignment)
            known = connection.scalar(select(_FILE.c.number).where(of_partition, _FILE.c.name == name))
            if known is not None:
                return int(known)
            number = int(connection.scalar(select(func.max(_FILE.c.number)).where(of_partition)) or 0) + 1
            row = {"stream_partition": stream_partition, "number": number, "name": name}
            connection.execute(insert(_FILE).values(stream=assignment.stream, **row))
        return number

    def begun_files(self, name: str) -> dict[int, dict[int, str]]:
        """Returns every source file that was started: stream partition -> number -> name."""
        with self.database.transaction("stream.read_files") as connection:
            rows = connection.execute(select(_FILE).where(_FILE.c.stream == name).order_by(_FILE.c.number)).all()
        found: dict[int, dict[int, str]] = {}
        for row in rows:
            found.setdefault(row.stream_partition, {})[row.number] = row.name
        return found
