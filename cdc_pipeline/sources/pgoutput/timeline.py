"""Finds the transaction of each message of a feed, and the ordinal of each event in its transaction."""

import numpy as np

from cdc_pipeline.errors import DecodeError
from cdc_pipeline.sources.pgoutput.messages import POSTGRES_EPOCH, OpenTransaction, damaged
from cdc_pipeline.sources.pgoutput.tuples import Integers, Mask, MessageBuffer
from cdc_pipeline.sources.protocol import Transactions

_BEGIN, _COMMIT = b"BC"
_EVENTS = tuple(b"IUDT")
_BEGIN_BYTES = 21
_COMMIT_BYTES = 26
_NOTHING_OPEN = OpenTransaction(commit_lsn=0, commit_time=0, xid=0, ordinal=0)


class Timeline:
    """The transactions of a feed, numbered in the order of their begin. Number 0 was open before the feed.

    `transactions`: those whose commit was read.
    """

    def __init__(self, buffer: MessageBuffer, carried: OpenTransaction | None) -> None:
        self._buffer = buffer
        self._is_event = np.isin(buffer.kinds, _EVENTS)
        begins, starts = self._fixed(_BEGIN, _BEGIN_BYTES)
        before = carried or _NOTHING_OPEN
        self._commit_lsn = np.concatenate(([before.commit_lsn], buffer.integers(starts + 1, ">u8")))
        times = buffer.integers(starts + 9, ">i8") + POSTGRES_EPOCH
        self._commit_time = np.concatenate(([before.commit_time], times))
        self._xid = np.concatenate(([before.xid], buffer.integers(starts + 17, ">u4")))
        self._number = np.cumsum(buffer.kinds == _BEGIN)
        events = np.cumsum(self._is_event)
        self._ordinal = events - np.concatenate(([-before.ordinal], events[begins]))[self._number]
        self._is_open = self._find_open(int(carried is not None))
        self._check_inside(self._is_event)
        self.transactions = self._commits()
        self.carried = carried if not len(buffer.kinds) else self._open_at(len(buffer.kinds) - 1)

    def of(self, messages: Integers) -> tuple[Integers, Integers, Integers, Integers]:
        """Returns commit position, commit time, transaction id and ordinal of each of the messages."""
        numbers = self._number[messages]
        return self._commit_lsn[numbers], self._commit_time[numbers], self._xid[numbers], self._ordinal[messages]

    def at(self, message: int) -> OpenTransaction:
        """Returns the transaction of a message. Its ordinal counts the events up to that message, inclusive."""
        transaction = self._open_at(message)
        if transaction is None:
            raise _outside(self._buffer.kinds[message])
        return transaction

    def commit_lsn_at(self, message: int) -> int | None:
        return int(self._commit_lsn[self._number[message]]) if self._is_open[message] else None

    def _open_at(self, message: int) -> OpenTransaction | None:
        if not self._is_open[message]:
            return None
        lsn, time, xid, ordinal = (int(value[0]) for value in self.of(np.array([message])))
        return OpenTransaction(commit_lsn=lsn, commit_time=time, xid=xid, ordinal=ordinal)

    def _find_open(self, carried: int) -> Mask:
        """Returns whether a transaction is open after each message. Raises DecodeError unless B and C alternate."""
        begin, commit = self._buffer.kinds == _BEGIN, self._buffer.kinds == _COMMIT
        depth = carried + np.cumsum(begin.astype(np.int64) - commit)
        if (depth > 1).any():
            raise damaged("a message B inside of a transaction", "a message C before it")
        if (depth < 0).any():
            raise _outside(_COMMIT)
        is_open: Mask = depth == 1
        return is_open

    def _check_inside(self, messages: Mask) -> None:
        outside = messages & ~self._is_open
        if outside.any():
            raise _outside(self._buffer.kinds[outside][0])

    def _commits(self) -> Transactions:
        commits, starts = self._fixed(_COMMIT, _COMMIT_BYTES)
        commit_lsn, commit_time, _, _ = self.of(commits)
        found = self._buffer.integers(starts + 2, ">u8")
        if (found != commit_lsn).any():
            wrong = np.flatnonzero(found != commit_lsn)[0]
            raise damaged(f"a commit at position {found[wrong]:x}", f"{commit_lsn[wrong]:x} as its begin says")
        end_lsn = self._buffer.integers(starts + 10, ">u8")
        return Transactions(commit_position=commit_lsn, end_position=end_lsn, commit_time=commit_time)

    def _fixed(self, kind: int, size: int) -> tuple[Integers, Integers]:
        """Returns numbers and start offsets of the messages of one kind. Raises DecodeError unless each has `size`."""
        messages = np.flatnonzero(self._buffer.kinds == kind)
        starts = self._buffer.starts[messages]
        sizes = self._buffer.ends[messages] - starts
        if (sizes != size).any():
            raise damaged(f"a message {chr(kind)} of {int(sizes[sizes != size][0])} bytes", f"{size} bytes")
        return messages, starts


def _outside(kind: int) -> DecodeError:
    return damaged(f"a message {chr(kind)} outside of any transaction", "a message B before it")
