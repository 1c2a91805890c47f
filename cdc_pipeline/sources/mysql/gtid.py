"""MariaDB's global transaction ids, and the pipeline's positions that stand for them.

A position is the sequence number of a transaction in the server's only replication domain. The server gives these
numbers in the order of commits, which is the order of its binary log. The transaction n commits at the position n, and
the position behind it is n + 1. A position needs no other state, it stays valid when log files are rotated, and it
names the same place on every server of the domain. A log with several domains has no such order: `position_behind`
refuses it.
"""

from dataclasses import dataclass

from cdc_pipeline.errors import SourceError

_PARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Gtid:
    """One transaction: `domain-server-sequence`."""

    domain: int
    server: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.domain}-{self.server}-{self.sequence}"

    @property
    def position(self) -> int:
        """The position at which the transaction commits."""
        return self.sequence

    @property
    def end(self) -> int:
        """The position behind the transaction."""
        return self.sequence + 1

    def before(self, position: int) -> "Gtid":
        """Returns the last transaction before `position`, in the form in which a reader names its start."""
        return Gtid(domain=self.domain, server=self.server, sequence=position - 1)


def parse_gtid(text: str) -> Gtid:
    """Reads one id. Raises SourceError for other text."""
    parts = text.strip().split("-")
    if len(parts) != _PARTS or not all(part.isdigit() for part in parts):
        raise SourceError(
            f"the server names its position {text!r}", expected="a MariaDB GTID such as 0-1-1234", remedy=_REMEDY
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


def position_behind(binlog_position: str) -> int:
    """Returns the position behind every transaction of the log, from `@@gtid_binlog_pos`."""
    last = last_gtid(binlog_position)
    return 1 if last is None else last.end


_REMEDY = "read a MariaDB server 10.5 or newer with log_bin"
