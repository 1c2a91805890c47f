"""Character sets of MySQL and MariaDB: the bytes of the log mean here what they mean to the server."""

from contextlib import closing

import pytest

from cdc_pipeline.types.mysql_charsets import KNOWN, codec_of, decoded
from tests.support.mariadb import connected

PAIRED = frozenset({"gbk", "gb2312", "euckr", "cp932", "eucjpms"})
UNICODE = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii", "ucs2", "utf16", "utf16le", "utf32"})
NO_CHARACTER = "?"
"""What a server shows for bytes that it stores and has no character for."""


@pytest.mark.parametrize("charset", sorted(KNOWN - UNICODE))
def test_bytes_that_are_decoded_have_the_characters_that_the_server_shows(
    mariadb: str, mysql_database: str, charset: str
) -> None:
    """All characters of one byte, and of two. Bytes that are not decoded are quarantined, with their rows."""
    values = [bytes([octet]) for octet in range(256)]
    if charset in PAIRED:
        values += [bytes([first, second]) for first in range(0x80, 0x100) for second in range(0x40, 0x100)]
    with closing(connected(mariadb, mysql_database)) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute(f"CREATE TABLE texts (written varbinary(4), shown varchar(4) CHARACTER SET {charset})")
        cursor.executemany("INSERT INTO texts VALUES (%s, NULL)", [(value,) for value in values])
        cursor.execute(f"UPDATE IGNORE texts SET shown = convert(written USING {charset})")
        cursor.execute("SELECT written, shown FROM texts WHERE hex(shown) = hex(written)")
        stored = cursor.fetchall()
    assert len(stored) > 190
    assert {
        bytes(written).hex(): (shown, found)
        for written, shown in stored
        if NO_CHARACTER not in shown and (found := _decoded(bytes(written), charset)) not in (None, shown)
    } == {}


def _decoded(value: bytes, charset: str) -> str | None:
    codec = codec_of(charset)
    try:
        return None if codec is None else decoded(value, codec)
    except UnicodeDecodeError:
        return None
