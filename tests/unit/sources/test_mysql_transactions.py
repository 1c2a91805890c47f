"""What was read of the log makes a batch when it can be registered: changes, and transactions that have ended."""

import struct
from typing import Any

from cdc_pipeline.sources.protocol import Marker
from tests.unit.sources.test_mysql_table_maps import names, read, reader_of, sized, table_map

VARCHAR = 15
UTF_8 = b"\2\1\x2d"


def test_a_marker_message_is_no_batch_before_its_transaction_has_ended() -> None:
    """A batch of it alone would be none, and the message would be lost."""
    reader, known = reader_of(start=0), dict[int, Any]()
    described = UTF_8 + names(b"pipeline", b"message")
    columns = table_map((VARCHAR,) * 2, struct.pack("<HH", 64, 200), described, "cdc.cdc_marker")
    row = b"\0" + sized(b"shop") + sized(b"cut here")
    for kind, content in (
        (162, struct.pack("<QIB", 6, 0, 0)),
        (19, columns),
        (30, struct.pack("<IHHH", 7, 0, 1, 2) + b"\2\3" + row),
    ):
        reader.add(read(kind, content, known))
        assert reader.is_empty
    reader.add(read(16, struct.pack("<Q", 1), known))
    assert not reader.is_empty
    _, ended, markers = reader.take_batch()
    assert [transaction.number for transaction, _ in ended] == [6]
    assert markers == [Marker(text="cut here", commit_position=6)]
