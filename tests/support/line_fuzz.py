"""Lines of Debezium's files that nobody would write: recorded ones with parts exchanged, and bytes at random."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

RECORDED = Path(__file__).parents[1] / "data" / "debezium"
PLACEHOLDER = "__debezium_unavailable_value"
_MOST_CHANGES = 4


def recorded_lines() -> list[str]:
    """Those of tests/data, and envelopes as a file sink without a wrapper writes them."""
    found = [
        line for path in sorted(RECORDED.glob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()
    ]
    values = [json.loads(line)["value"] for line in found if line.startswith("{")]
    return [*found, *(value for value in values if isinstance(value, str))]


class LineFuzz:
    """Draws lines by `chance` alone, so that a seed tells them all."""

    def __init__(self, chance: Random, recorded: list[str]) -> None:
        self._chance = chance
        self._recorded = recorded

    def lines(self, count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield self.line().replace(b"\n", b" ")

    def line(self) -> bytes:
        kind = self._chance.random()
        text = self._chance.choice(self._recorded)
        if kind < 0.1:
            return text.encode()
        if kind < 0.15:
            return self._chance.randbytes(self._chance.randrange(200))
        if kind < 0.3:
            return self._with_other_bytes(text.encode())
        return self._with_other_parts(text)

    def _with_other_bytes(self, line: bytes) -> bytes:
        for _ in range(self._chance.randint(1, _MOST_CHANGES)):
            start = self._chance.randrange(len(line) + 1)
            end = min(len(line), start + self._chance.choice((0, 1, 1, 2, 30)))
            line = line[:start] + self._chance.choice(_BYTES) + line[end:]
        return line

    def _with_other_parts(self, text: str) -> bytes:
        document = json.loads(text)
        try:
            for _ in range(self._chance.randint(1, _MOST_CHANGES)):
                document = self._changed(document)
            line: str = json.dumps(document, ensure_ascii=self._chance.random() < 0.5)
        except RecursionError:  # nested several times, deeper than can be written
            return b"[" * self._chance.randrange(2_000)
        for mark, token in _TOKENS.items():
            line = line.replace(f'"{mark}"', token)
        return line.encode(errors="surrogatepass")

    def _changed(self, node: Any) -> Any:
        """The same with one part of it, at any depth, another. Texts that hold JSON are looked into."""
        if isinstance(node, str) and node.startswith('{"') and self._is_json(node) and self._chance.random() < 0.95:
            inside = json.dumps(self._changed(json.loads(node)))
            for mark, token in _TOKENS.items():
                inside = inside.replace(f'"{mark}"', token)
            return inside if self._is_json(inside) else node
        if not isinstance(node, dict | list) or not node or self._chance.random() < 0.05:
            return self._strange(node)
        keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = self._chance.choice(keys)
        if self._chance.random() < 0.1:
            return self._without_or_renamed(node, key)
        node[key] = self._changed(node[key])
        return node

    def _without_or_renamed(self, node: Any, key: Any) -> Any:
        value = node.pop(key)
        if isinstance(node, dict) and self._chance.random() < 0.5:
            node[self._chance.choice(_NAMES)] = value
        return node

    def _strange(self, before: Any) -> Any:
        kind = self._chance.random()
        if kind < 0.1:
            return [before]
        if kind < 0.2:
            return {"value": before, "scale": 3, "field": before, "payload": before}
        if kind < 0.25:
            return self._nested(before)
        return deepcopy(self._chance.choice(_VALUES))

    def _nested(self, inner: Any) -> Any:
        for _ in range(self._chance.choice((5, 90, 99, 100, 101, 150))):
            inner = [inner] if self._chance.random() < 0.5 else {"fields": inner}
        return inner

    @staticmethod
    def _is_json(text: str) -> bool:
        """Whether the next change can look into it."""
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return False
        return True


_TOKENS = {
    "@huge exponent": "1E+999999999",
    "@tiny exponent": "-1E-999999999",
    "@zero": "0E-999999999",
    "@many digits": "9" * 5_000,
    "@as many": "9" * 4_300,
    "@fraction": "0." + "7" * 5_000,
    "@long exponent": "1E" + "9" * 4_000,
    "@nan": "NaN",
    "@infinity": "-Infinity",
    "@deep": "[" * 900 + "]" * 900,
    "@deeper": '{"a":' * 5_000 + "1" + "}" * 5_000,
    "@twice": '{"id": 1, "id": [], "op": "c", "op": {}}',
}
_BYTES = (
    b"",
    b"\x00",
    b"\xff",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"1e999999999",
    b"\\ud800",
    b"\xed\xa0\x80",
)
_NAMES = ("op", "id", "ID", "", "\x00", "\ud800", "_cdc_version", "a" * 300, "table", "fields", "payload", "value")
_NUMBERS = (0, -1, 1, 127, 1 << 31, 1 << 63, -(1 << 63), (1 << 63) - 1, 1 << 64, 1 << 200, 10**4_000, 1.5, -0.0, 1e308)
_MOMENTS = (253_402_300_799_999, 221_845_392_000_000, -62_135_596_800_001, 9_000_000_000_000_000_000)
_TEXTS = (
    *("", "c", "r", "u", "d", "t", "m", "x", "\x00", "a\x00b", "\ud800", "é", "😀", "null", "[", "{", "[]", "{}"),
    *("[null,null]", '["1","2"]', "[[[[1]]]]", "[" * 900, "[1E+999999999]", "1E+999999999", "-1E-999999999"),
    *(
        "9" * 5_000,
        "1." + "9" * 5_000,
        "NaN",
        "Infinity",
        "PT" + "9" * 5_000 + "S",
        "P" + "9" * 19 + "Y",
        "P9999999999D",
    ),
    *(
        "0001-01-01",
        "9999-12-31T23:59:59.999999Z",
        "10000-01-01",
        "2026-02-30",
        "infinity",
        "24:00:00",
        "AAAA" * 30_000,
    ),
    *("mysql-bin.000001", "mysql-bin." + "9" * 400, PLACEHOLDER, "int32", "bytes", "struct", "array", "map", "float"),
    *("io.debezium.time.Date", "io.debezium.time.ZonedTimestamp", "io.debezium.data.VariableScaleDecimal"),
    *("org.apache.kafka.connect.data.Decimal", "io.debezium.data.geometry.Point", "z" * 100_000),
)
_LISTS: tuple[Any, ...] = ([], [[]], [None], {}, {"a": {}}, [1, "a", None], {"": None}, {"fields": 5}, [[1], [2]])
_VALUES: tuple[Any, ...] = (None, True, False, *_NUMBERS, *_MOMENTS, *_TEXTS, *_LISTS, *_TOKENS)
