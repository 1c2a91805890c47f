"""GTIDs with tags: events as MySQL 9.7 wrote them, and sets as the command takes them that asks for its log."""

import struct

import pytest
from pymysqlreplication.gtid import GtidSet as LibrarySet

from cdc_pipeline.errors import DecodeError
from cdc_pipeline.sources.mysql.gtid_set import parse_gtid_set
from cdc_pipeline.sources.mysql.tagged_gtids import asking_for, encoded_set, tagged_gtid

UUID = "22bc6b59-e8dd-11f1-87ae-02fc00000001"
EVENTS = {
    f"{UUID}:abc:1": "02700000000244f102d6b2a103750322c5031d02b90204f1030000000204040606616263"
    "08100a180c7fa21ddfb41a61061051041283120b",
    f"{UUID}:abc:2": "02700000000244f102d6b2a103750322c5031d02b90204f1030000000204080606616263"
    "08100a1c0c7f8d24dfb41a61061051041283120b",
    f"{UUID}:xy_1:1": "02720000000244f102d6b2a103750322c5031d02b90204f1030000000204040608"
    "78795f3108100a200c7fd829dfb41a61061055041283120b",
}


@pytest.mark.parametrize("gtid", EVENTS)
def test_the_event_names_server_tag_and_number(gtid: str) -> None:
    found = tagged_gtid(bytes.fromhex(EVENTS[gtid]), 1_700_000_000)
    assert (found.gtid, found.timestamp) == (gtid, 1_700_000_000)


@pytest.mark.parametrize("number", [1, 31, 32, 1 << 20, 1 << 40, 1 << 54, 1 << 55, (1 << 62) - 1])
def test_a_number_of_any_size_is_read(number: int) -> None:
    content = bytes.fromhex(EVENTS[f"{UUID}:abc:1"])
    before, behind = content.split(bytes.fromhex("04040606"))
    longer = before[2:] + b"\x04" + written(number << 1) + b"\x06\x06" + behind
    assert tagged_gtid(b"\x02" + bytes([(len(longer) + 2) << 1]) + longer, 0).gtid == f"{UUID}:abc:{number}"


def written(number: int) -> bytes:
    for more in range(8):
        if number < 1 << 7 * (more + 1):
            return (number << more + 1 | (1 << more) - 1).to_bytes(more + 1, "little")
    return b"\xff" + struct.pack("<Q", number)


def test_another_content_is_one_clear_error() -> None:
    content = bytes.fromhex(EVENTS[f"{UUID}:abc:1"])
    damaged = [content[:size] for size in range(len(content))]
    damaged += [b"\x04" + content[1:], content[:3] + b"\x02" + content[4:], content.replace(b"\x06abc", b"\x06ab\xe9")]
    for each in damaged:
        with pytest.raises(DecodeError, match="GTID with a tag"):
            tagged_gtid(each, 0)


@pytest.mark.parametrize("text", ["", f"{UUID}:1-6", f"{UUID}:1-6:9,33bc6b59-e8dd-11f1-87ae-02fc00000001:4-5"])
def test_a_set_without_tags_has_the_form_that_every_server_reads(text: str) -> None:
    assert encoded_set(parse_gtid_set(text)) == LibrarySet(text).encoded()


def test_a_set_with_tags_says_so_and_has_each_tag_as_an_entry() -> None:
    octets = bytes.fromhex(UUID.replace("-", ""))
    head = b"\x01" + struct.pack("<Q", 2)[:6] + b"\x01"
    bare = octets + b"\x00" + struct.pack("<QQQ", 1, 1, 7)
    tagged = octets + b"\x06abc" + struct.pack("<QQQQQ", 2, 1, 3, 5, 6)
    executed = parse_gtid_set(f"{UUID}:1-6:abc:1-2:5")
    assert encoded_set(executed) == head + bare + tagged
    packet = struct.pack("<IBHII3sQI", 34, 0x1E, 0, 7, 3, b"\0\0\0", 4, 8) + struct.pack("<Q", 0)
    asked = asking_for(packet, executed)
    assert struct.unpack_from("<I", asked) == (len(asked) - 4,)
    assert asked[4:26] == packet[4:26]
    assert asked[26:] == struct.pack("<I", len(encoded_set(executed))) + encoded_set(executed)
