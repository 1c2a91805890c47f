"""MariaDB's global transaction ids, and the pipeline's positions that stand for them.

A position is the sequence number of a transaction in the server's only replication domain. The server gives these
numbers in the order of commits, which is the order of its binary log. The transaction n commits at the position n, and
the position behind it is n + 1. A position needs no other state, it stays valid when log files are rotated, and it
names the same place on every server of the domain. A log with several domains has no such order: `last_gtid` refuses
it.
"""

from dataclasses import dataclass, replace
from typing import Any

from cdc_pipeline.errors import SourceChanged, SourceError
from cdc_pipeline.sources.mysql.log_runs import LogRun, LogTransaction
from cdc_pipeline.sources.mysql.logged_statements import content_of

_PARTS = 3
_STANDALONE, _GROUP_COMMIT, _PREPARED_XA, _COMPLETED_XA = 1, 2, 64, 128
_MORE_FLAGS, _COMMIT_ID_SIZE = 13, 8
"""Where an event has further flags, and the size of what stands before them in a transaction of a group."""
_STARTS_ALTER, _ROLLS_ALTER_BACK = 2, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Gtid:
    """The place behind the transaction `domain-server-sequence`. With the sequence 0: the beginning of the log."""

    domain: int
    server: int
    sequence: int

    def __str__(self) -> str:
        return f"{self._origin}-{self.sequence}" if self.sequence else ""

    @property
    def _origin(self) -> str:
        return f"{self.domain}-{self.server}"

    @property
    def end(self) -> int:
        """The position behind everything that is before the place."""
        return self.sequence + 1

    @property
    def last(self) -> LogTransaction:
        """The last transaction before the place."""
        return LogTransaction(origin=self._origin, number=self.sequence, position=self.sequence)

    def next(self, event: Any, last: LogTransaction) -> LogTransaction:
        """Returns the transaction that an event with its id begins, behind `last`.

        Raises SourceChanged for one that cannot come there.
        """
        found = Gtid(domain=event.domain_id, server=event.server_id, sequence=event.gtid_seq_no)
        if found.domain != self.domain or found.sequence <= last.number:
            raise SourceChanged(
                f"the source's log has {found} behind {last.origin}-{last.number}",
                expected="one replication domain whose numbers rise: set gtid_strict_mode = ON",
                remedy="run cdc setup-source --begin-again, then cdc snapshot",
            )
        return found.last

    def is_alone(self, event: Any) -> bool:
        """Returns whether an event with an id begins a statement that is a transaction of its own."""
        return bool(event.flags & _STANDALONE) and not event.flags & _PREPARED_XA

    def is_unfinished(self, event: Any) -> bool:
        """Returns whether an ALTER only begins, or failed: with binlog_alter_two_phase the log has it twice."""
        if event.flags & (_PREPARED_XA | _COMPLETED_XA):
            return False
        content = content_of(event)
        place = _MORE_FLAGS + (_COMMIT_ID_SIZE if event.flags & _GROUP_COMMIT else 0)
        return bool(int.from_bytes(content[place : place + 1]) & (_STARTS_ALTER | _ROLLS_ALTER_BACK))

    def passed(self, run: LogRun) -> "Gtid":
        """Returns the place behind these transactions, which come next."""
        return parse_gtid(f"{run.first.origin}-{run.last_number}")

    def before(self, transaction: LogTransaction) -> "Gtid":
        """Returns a place from which the server sends this transaction first. It is one before the place."""
        return replace(self, sequence=transaction.number - 1)

    def at(self, position: int) -> "Gtid":
        return replace(self, sequence=position - 1)


def parse_gtid(text: str) -> Gtid:
    """Reads one id. Raises SourceError for other text."""
    parts = text.strip().split("-")
    if len(parts) != _PARTS or not all(part.isdigit() for part in parts):
        raise SourceError(
            f"the server names its position {text!r}",
            expected="a MariaDB GTID such as 0-1-1234",
            remedy="read a MariaDB server 10.5 or newer with log_bin",
        )
    domain, server, sequence = map(int, parts)
    return Gtid(domain=domain, server=server, sequence=sequence)


def last_gtid(binlog_position: str) -> Gtid | None:
    """Reads `@@gtid_binlog_pos`: the last transaction of the log, None for an empty log.

    Raises SourceError for a log with several domains.
    """
    entries = [parse_gtid(entry) for entry in binlog_position.split(",") if entry.strip()]
    domains = {entry.domain for entry in entries}
    if len(domains) > 1:
        raise SourceError(
            f"the source's log has the replication domains {', '.join(map(str, sorted(domains)))}",
            expected="one domain: transactions of different domains have no order",
            remedy="write with one gtid_domain_id; after a change of it, run FLUSH BINARY LOGS DELETE_DOMAIN_ID = (…)"
            " for the domain that is no longer used",
        )
    return max(entries, key=lambda entry: entry.sequence, default=None)
