"""The transactions of the shop's users as SQL: what each kind does, and how often it runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from threading import Event
from typing import Any
from uuid import UUID

_ANY_ROWS = """
SELECT {table}_id FROM {table}s
WHERE {table}_id >= (SELECT (max({table}_id) * %(place)s)::bigint FROM {table}s)
ORDER BY {table}_id LIMIT {rows} FOR {lock} SKIP LOCKED
"""
_CHANGED_ROWS = 2
PAUSE = "pause"
"""Instead of a statement: the transaction stays open for one to four seconds."""

INSERT_CUSTOMER = """
INSERT INTO customers (reference, full_name, credit, preferences)
VALUES (%(uuid)s, 'Žofie 李', %(price)s, '{"language": "de"}')
"""
_INSERT_PRODUCT = """
INSERT INTO products (title, description, price, weight, labels)
VALUES ('new', %(text)s, %(price)s, %(weight)s, '{new}')
"""
_INSERT_ORDER = f"""
WITH customer AS ({_ANY_ROWS.format(table="customer", rows=1, lock="KEY SHARE")}),
product AS ({_ANY_ROWS.format(table="product", rows=1, lock="KEY SHARE")}),
new_order AS (
    INSERT INTO orders (customer_id, note, tags, meta, tracking, is_gift)
    VALUES ((SELECT customer_id FROM customer), 'live', '{{live}}', '{{"channel": "live"}}', %(uuid)s, %(is_gift)s)
    RETURNING order_id
)
INSERT INTO order_items (order_id, line_no, product_id, quantity, unit_price, discount)
SELECT order_id, line_no, product_id, line_no * 2, %(price)s, %(weight)s
FROM new_order, product, generate_series(1, %(number)s) AS line_no
"""
_DELETE_NEW_ORDER = "DELETE FROM orders WHERE order_id = currval(pg_get_serial_sequence('orders', 'order_id'))"
_UPDATE_ORDER = """
UPDATE orders
SET status = (enum_range(status))[%(number)s], total = %(price)s, tags = tags || 'changed'::text,
    meta = jsonb_build_object('changed', %(price)s), updated_at = now()
WHERE order_id = %(id)s
"""
_UPDATE_CUSTOMER = """
UPDATE customers SET loyalty = mod(loyalty, 100) + 1, is_active = NOT is_active, credit = %(price)s, updated_at = now()
WHERE customer_id = %(id)s
"""
_UPDATE_PRICE = "UPDATE products SET price = %(price)s, updated_at = now() WHERE product_id = %(id)s"
_UPDATE_TEXT = "UPDATE products SET description = %(text)s, updated_at = now() WHERE product_id = %(id)s"
_DELETE_ORDER = "DELETE FROM orders WHERE order_id = %(id)s"
DELETE_CUSTOMER = "DELETE FROM customers WHERE customer_id = %(id)s"
RETURN_CUSTOMER = "INSERT INTO customers (customer_id, reference, full_name) VALUES (%(id)s, %(uuid)s, 'returned')"
_MOVE_CUSTOMER = "UPDATE customers SET customer_id = DEFAULT, updated_at = now() WHERE customer_id = %(id)s"
_MOVE_PRODUCT = "UPDATE products SET product_id = DEFAULT, updated_at = now() WHERE product_id = %(id)s"
_MOVE_LINE = """
UPDATE order_items SET line_no = (SELECT max(line_no) + 1 FROM order_items WHERE order_id = %(id)s)
WHERE order_id = %(id)s AND line_no = (SELECT min(line_no) FROM order_items WHERE order_id = %(id)s)
"""
SWAP_CUSTOMERS = tuple(
    f"UPDATE customers SET customer_id = {new} WHERE customer_id = {old}"
    for old, new in (("%(id)s", "-%(id)s"), ("%(other)s", "%(id)s"), ("-%(id)s", "%(other)s"))
)
_ODD_ORDER = """
UPDATE orders SET note = %(note)s, tags = %(tags)s::text[], meta = %(meta)s::jsonb, tracking = NULL, is_gift = NULL,
                  total = %(amount)s, updated_at = now()
WHERE order_id = %(id)s
"""
_ODD_CUSTOMER = """
UPDATE customers SET full_name = coalesce(%(note)s, ''), birthday = %(day)s, loyalty = %(small)s, credit = %(amount)s,
                     preferences = %(meta)s::jsonb, picture = %(bytes)s, updated_at = now()
WHERE customer_id = %(id)s
"""
_DRAWN: Mapping[str, Sequence[object]] = {
    "number": (1, 2, 3, 4),
    "is_gift": (None, True, False),
    "weight": (None, 1e-300, 0.1, 1 / 3),
    "note": (None, "", " ", "NULL", r"\N", "\t\r\n", "Grüße, 東京 🛒", "e\u0301", "'one' \"two\" back\\slash {brace}"),
    "tags": (None, [], [""], ["NULL"], [None], ["a,b", '"', "\\", "{}", " "], ["東京", None, "é"]),
    "meta": (None, "null", "{}", "[]", '""', "0.10", '{"a": {"b": [1, 2.50, null, "\\"é\\""]}}', '{"": 1e30}'),
    "day": (None, "0001-01-01", "1582-10-10", "1970-01-01", "2024-02-29", "9999-12-31"),
    "amount": ("0.00", "-0.01", "9999999999.99", "-9999999999.99"),
    "small": (0, 32767, -32768),
    "bytes": (None, b"", b"\x00", b"\\x00\xff"),
}
"""Values for parameters of the statements: NULL, empty values, values that look like these, and extremes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`share`: relative frequency. With `table`, two of its rows are locked first: %(id)s and %(other)s.

    `any_rows`: the statement that finds and locks them, with the placeholders {table}, {rows} and {lock}.
    """

    name: str
    share: int
    table: str | None = None
    statements: tuple[str, ...]
    any_rows: str = _ANY_ROWS

    def run(self, cursor: Any, chance: Random, stopping: Event) -> bool:
        """Executes the statements in the open transaction. Returns False if there were not two rows to lock."""
        parameters = _parameters(chance)
        if self.table is not None:
            cursor.execute(self.any_rows.format(table=self.table, rows=_CHANGED_ROWS, lock="UPDATE"), parameters)
            ids = [number for (number,) in cursor.fetchall()]
            if len(ids) < _CHANGED_ROWS:
                return False
            parameters |= {"id": ids[0], "other": ids[1]}
        for statement in self.statements:
            if statement == PAUSE:
                stopping.wait(chance.uniform(1, 4))
            else:
                cursor.execute(statement, parameters)
        return True


def _parameters(chance: Random) -> dict[str, Any]:
    """`place`: selects new rows more often than old ones. `text`: 5 to 20 kB that do not compress."""
    return {
        "place": chance.betavariate(3, 1),
        "price": f"{chance.randrange(50_000) / 100:.2f}",
        "uuid": str(UUID(int=chance.getrandbits(128), version=4)),
        "text": chance.randbytes(chance.randint(2_500, 10_000)).hex(),
        **{name: chance.choice(values) for name, values in _DRAWN.items()},
    }


KINDS = (
    Kind(name="order inserts", share=24, statements=(_INSERT_ORDER,)),
    Kind(name="customer inserts", share=5, statements=(INSERT_CUSTOMER,)),
    Kind(name="product inserts", share=2, statements=(_INSERT_PRODUCT,)),
    Kind(name="order updates", share=24, table="order", statements=(_UPDATE_ORDER,)),
    Kind(name="customer updates", share=8, table="customer", statements=(_UPDATE_CUSTOMER,)),
    # The description is not changed, so PostgreSQL's log leaves it out.
    Kind(name="updates beside a large text", share=12, table="product", statements=(_UPDATE_PRICE, _UPDATE_PRICE)),
    Kind(name="large text updates", share=2, table="product", statements=(_UPDATE_TEXT,)),
    Kind(name="order deletes", share=6, table="order", statements=(_DELETE_ORDER,)),
    Kind(name="customer deletes", share=1, table="customer", statements=(DELETE_CUSTOMER,)),
    Kind(name="deletes with return", share=1, table="customer", statements=(DELETE_CUSTOMER, RETURN_CUSTOMER)),
    Kind(name="customer key changes", share=2, table="customer", statements=(_MOVE_CUSTOMER,)),
    Kind(name="product key changes", share=1, table="product", statements=(_MOVE_PRODUCT,)),
    Kind(name="line number changes", share=2, table="order", statements=(_MOVE_LINE,)),
    Kind(name="key swaps", share=1, table="customer", statements=SWAP_CUSTOMERS),
    Kind(name="inserts with delete", share=2, statements=(_INSERT_ORDER, _DELETE_NEW_ORDER)),
    Kind(name="odd orders", share=2, table="order", statements=(_ODD_ORDER,)),
    Kind(name="odd customers", share=2, table="customer", statements=(_ODD_CUSTOMER,)),
    Kind(name="rollbacks", share=1, table="order", statements=(_INSERT_ORDER, _DELETE_ORDER, "ROLLBACK")),
    Kind(
        name="savepoints",
        share=2,
        table="order",
        statements=(_UPDATE_ORDER, "SAVEPOINT half", _DELETE_ORDER, "ROLLBACK TO SAVEPOINT half", _INSERT_ORDER),
    ),
)
LONG = Kind(
    name="long transactions", share=1, table="order", statements=(_INSERT_ORDER, _UPDATE_ORDER, PAUSE, _UPDATE_ORDER)
)
"""It stays open across the ends of slices."""
