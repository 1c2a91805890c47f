"""Decodes the row events (messages I, U and D) of one relation version into columns, in stream order."""

from dataclasses import dataclass

import numpy as np

from cdc_pipeline.sources.pgoutput.messages import Relation, damaged
from cdc_pipeline.sources.pgoutput.timeline import Timeline
from cdc_pipeline.sources.pgoutput.tuples import Integers, Mask, MessageBuffer, Octets, TupleColumn

_INSERT, _UPDATE, _DELETE = b"IUD"
_KEY, _OLD, _NEW = b"KON"
_LOWER_CASE = 0x20
_MARK = 5
_TUPLE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Events of one relation version in stream order, by column.

    `op` holds the bytes i, u, d. `commit_time` is in microseconds since 1970. `new` has one column per relation column,
    NULL in the rows of deletes. `old_kind` is the byte K where `old` holds the old key (its other columns are NULL),
    O where it holds the whole old row, 0 where it holds nothing. `old` is None if no event has an old row.
    """

    relation: Relation
    op: Octets
    commit_lsn: Integers
    ordinal: Integers
    commit_time: Integers
    xid: Integers
    new: tuple[TupleColumn, ...]
    old: tuple[TupleColumn, ...] | None
    old_kind: Octets

    def since(self, position: int) -> "RowGroup":
        """Returns the events that commit at the position or later."""
        first = int(np.searchsorted(self.commit_lsn, position))
        if not first:
            return self
        return RowGroup(
            relation=self.relation,
            op=self.op[first:],
            commit_lsn=self.commit_lsn[first:],
            ordinal=self.ordinal[first:],
            commit_time=self.commit_time[first:],
            xid=self.xid[first:],
            new=tuple(column.since(first) for column in self.new),
            old=None if self.old is None else tuple(column.since(first) for column in self.old),
            old_kind=self.old_kind[first:],
        )


def decode_rows(buffer: MessageBuffer, relation: Relation, rows: Integers, timeline: Timeline) -> RowGroup:
    """Decodes the messages with the ascending numbers `rows`. Raises DecodeError for damaged messages."""
    kinds, places, ends = buffer.kinds[rows], buffer.starts[rows] + _TUPLE, buffer.ends[rows]
    marks = buffer.octets[buffer.starts[rows] + _MARK]
    has_new, has_old = kinds != _DELETE, marks != _NEW
    _check_marks(kinds, marks, has_old)
    old = None
    if has_old.any():
        with_old = np.flatnonzero(has_old)
        fields, old_ends = buffer.walk(places[with_old], ends[with_old], len(relation.columns))
        old = tuple(buffer.column(column, with_old, len(rows)) for column in fields)
        places[with_old] = old_ends
        _check_ends(places[~has_new], ends[~has_new])
        _step_over_new_mark(buffer, places, has_old & has_new)
    with_new = np.flatnonzero(has_new)
    fields, new_ends = buffer.walk(places[with_new], ends[with_new], len(relation.columns))
    _check_ends(new_ends, ends[with_new])
    commit_lsn, commit_time, xid, ordinal = timeline.of(rows)
    return RowGroup(
        relation=relation,
        op=kinds | _LOWER_CASE,
        commit_lsn=commit_lsn,
        ordinal=ordinal,
        commit_time=commit_time,
        xid=xid,
        new=tuple(buffer.column(column, with_new, len(rows)) for column in fields),
        old=old,
        old_kind=np.where(has_old, marks, 0).astype(np.uint8),
    )


def _check_marks(kinds: Octets, marks: Octets, has_old: Mask) -> None:
    allowed = np.where(kinds == _INSERT, ~has_old, (marks == _KEY) | (marks == _OLD) | (~has_old & (kinds == _UPDATE)))
    if not allowed.all():
        kind, mark = bytes([kinds[~allowed][0]]), bytes([marks[~allowed][0]])
        raise damaged(f"a message {kind!r} whose first tuple is marked {mark!r}", "N in I; N, K or O in U; K or O in D")


def _step_over_new_mark(buffer: MessageBuffer, places: Integers, updates: Mask) -> None:
    """Moves `places` after the mark N, which precedes the new tuple of an update with an old row.

    The buffer's padding makes the read at the end of a message safe.
    """
    marks = buffer.octets[places[updates]]
    if (marks != _NEW).any():
        raise damaged(f"an update whose second tuple is marked {bytes([marks[marks != _NEW][0]])!r}", "N")
    places[updates] += 1


def _check_ends(found: Integers, expected: Integers) -> None:
    if (found != expected).any():
        raise damaged(
            f"{int((expected - found)[found != expected][0])} bytes after the last tuple of a message", "none"
        )
