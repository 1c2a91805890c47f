"""What people do to the shop: one function for each kind of transaction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from threading import Event
from uuid import UUID

import psycopg2.extensions

Cursor = psycopg2.extensions.cursor

ANY_ROW = """
SELECT {table}_id FROM {table}s
WHERE {table}_id >= (SELECT (max({table}_id) * %(place)s)::bigint FROM {table}s)
ORDER BY {table}_id LIMIT 1 FOR {lock} SKIP LOCKED
"""
INSERT_CUSTOMER = """
INSERT INTO customers (reference, full_name, loyalty, credit, preferences)
VALUES (%(reference)s, %(name)s, %(loyalty)s, %(credit)s, '{"language": "de"}') RETURNING customer_id
"""
INSERT_PRODUCT = """
INSERT INTO products (title, description, price, weight, labels)
VALUES ('new', %(text)s, %(price)s, %(weight)s, '{new}')
"""
INSERT_ORDER = """
INSERT INTO orders (customer_id, note, tags, meta, tracking, is_gift)
VALUES (%(customer)s, 'live', '{live}', '{"channel": "live"}', %(tracking)s, %(gift)s) RETURNING order_id
"""
INSERT_ITEM = """
INSERT INTO order_items (order_id, line_no, product_id, quantity, unit_price, discount)
VALUES (%(order)s, %(line)s, %(product)s, %(quantity)s, %(price)s, %(discount)s)
"""
UPDATE_ORDER = """
UPDATE orders
SET status = (enum_range(status))[%(status)s], total = %(price)s, tags = tags || 'changed'::text,
    meta = jsonb_build_object('changed', %(price)s), updated_at = now()
WHERE order_id = %(id)s
"""
UPDATE_CUSTOMER = """
UPDATE customers SET loyalty = mod(loyalty, 100) + 1, is_active = NOT is_active, credit = %(credit)s, updated_at = now()
WHERE customer_id = %(id)s
"""
UPDATE_PRICE = "UPDATE products SET price = %(price)s, updated_at = now() WHERE product_id = %(id)s"
UPDATE_TEXT = "UPDATE products SET description = %(text)s, updated_at = now() WHERE product_id = %(id)s"
DELETE_ORDER = "DELETE FROM orders WHERE order_id = %(id)s"
DELETE_CUSTOMER = "DELETE FROM customers WHERE customer_id = %(id)s"
RETURN_CUSTOMER = "INSERT INTO customers (customer_id, reference, full_name) VALUES (%(id)s, %(reference)s, 'returned')"
MOVE_CUSTOMER = "UPDATE customers SET customer_id = DEFAULT, updated_at = now() WHERE customer_id = %(id)s"
MOVE_PRODUCT = "UPDATE products SET product_id = DEFAULT, updated_at = now() WHERE product_id = %(id)s"
MOVE_LINE = """
UPDATE order_items SET line_no = (SELECT max(line_no) + 1 FROM order_items WHERE order_id = %(id)s)
WHERE order_id = %(id)s AND line_no = (SELECT min(line_no) FROM order_items WHERE order_id = %(id)s)
"""
RENAME_CUSTOMER = "UPDATE customers SET customer_id = %(new)s WHERE customer_id = %(old)s"
ODD_ORDER = """
UPDATE orders SET note = %(note)s, tags = %(tags)s::text[], meta = %(meta)s::jsonb, tracking = NULL, is_gift = NULL,
                  total = %(amount)s, updated_at = now()
WHERE order_id = %(id)s
"""
ODD_CUSTOMER = """
UPDATE customers SET full_name = coalesce(%(note)s, ''), birthday = %(day)s, loyalty = %(small)s, credit = %(amount)s,
                     preferences = %(meta)s::jsonb, picture = %(bytes)s, updated_at = now()
WHERE customer_id = %(id)s
"""

ODD_VALUES: Mapping[str, Sequence[object]] = {
    "note": (None, "", " ", "NULL", r"\N", "\t\r\n", "Grüße, 東京 🛒", "e\u0301", "'one' \"two\" back\\slash {brace}"),
    "tags": (None, [], [""], ["NULL"], [None], ["a,b", '"', "\\", "{}", " "], ["東京", None, "é"]),
    "meta": (None, "null", "{}", "[]", '""', "0.10", '{"a": {"b": [1, 2.50, null, "\\"é\\""]}}', '{"": 1e30}'),
    "day": (None, "0001-01-01", "1582-10-10", "1970-01-01", "2024-02-29", "9999-12-31"),
    "amount": ("0.00", "-0.01", "9999999999.99", "-9999999999.99"),
    "small": (0, 32767, -32768),
    "bytes": (None, b"", b"\x00", b"\\x00\xff"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`share` is its part of all transactions. `run` gives 0 when it found no row to work on."""

    name: str
    share: int
    run: Callable[[Cursor, Random], int]


def _any(cursor: Cursor, chance: Random, table: str, *, lock: str = "UPDATE") -> int | None:
    """An id that nobody else works on now; new ones more often than old ones."""
    cursor.execute(ANY_ROW.format(table=table, lock=lock), {"place": chance.betavariate(3, 1)})
    found = cursor.fetchone()
    return None if found is None else int(found[0])


def _price(chance: Random) -> str:
    return f"{chance.randrange(50_000) / 100:.2f}"


def _long_text(chance: Random) -> str:
    """5 to 20 kB that do not compress."""
    return chance.randbytes(chance.randint(2_500, 10_000)).hex()


def _new_uuid(chance: Random) -> str:
    return str(UUID(int=chance.getrandbits(128), version=4))


def _returned_id(cursor: Cursor) -> int:
    (number,) = cursor.fetchone() or (0,)
    return int(number)


def insert_order(cursor: Cursor, chance: Random) -> int:
    customer = _any(cursor, chance, "customer", lock="KEY SHARE")
    order = {"customer": customer, "tracking": _new_uuid(chance), "gift": chance.choice([None, True, False])}
    cursor.execute(INSERT_ORDER, order)
    order_id = _returned_id(cursor)
    for line in range(1, chance.randint(2, 5)):
        product = _any(cursor, chance, "product", lock="KEY SHARE")
        if product is not None:
            item = {"order": order_id, "line": line, "product": product, "quantity": chance.randint(1, 9)}
            cursor.execute(INSERT_ITEM, item | {"price": _price(chance), "discount": chance.choice([None, 1 / 3])})
    return order_id


def insert_customer(cursor: Cursor, chance: Random) -> int:
    name = chance.choice(["Ada", "Žofie", "李"])
    customer = {"reference": _new_uuid(chance), "name": name, "loyalty": chance.randrange(5), "credit": _price(chance)}
    cursor.execute(INSERT_CUSTOMER, customer)
    return _returned_id(cursor)


def insert_product(cursor: Cursor, chance: Random) -> int:
    cursor.execute(
        INSERT_PRODUCT,
        {"text": _long_text(chance), "price": _price(chance), "weight": chance.choice([None, 1e-300, 0.1])},
    )
    return cursor.rowcount


def update_order(cursor: Cursor, chance: Random) -> int:
    order = _any(cursor, chance, "order")
    cursor.execute(UPDATE_ORDER, {"id": order, "status": chance.randint(1, 4), "price": chance.randrange(9_999) / 100})
    return cursor.rowcount


def update_customer(cursor: Cursor, chance: Random) -> int:
    customer = _any(cursor, chance, "customer")
    cursor.execute(UPDATE_CUSTOMER, {"id": customer, "credit": chance.choice([None, _price(chance)])})
    return cursor.rowcount


def update_beside_large_text(cursor: Cursor, chance: Random) -> int:
    """The description stays as it is, so the log leaves it out: twice in one transaction now and then."""
    product = _any(cursor, chance, "product")
    for _ in range(chance.choice([1, 1, 1, 2])):
        cursor.execute(UPDATE_PRICE, {"id": product, "price": _price(chance)})
    return cursor.rowcount


def update_large_text(cursor: Cursor, chance: Random) -> int:
    cursor.execute(UPDATE_TEXT, {"id": _any(cursor, chance, "product"), "text": _long_text(chance)})
    return cursor.rowcount


def delete_order(cursor: Cursor, chance: Random) -> int:
    """Takes its items along."""
    cursor.execute(DELETE_ORDER, {"id": _any(cursor, chance, "order")})
    return cursor.rowcount


def delete_customer(cursor: Cursor, chance: Random) -> int:
    """Their orders stay, with nobody behind them."""
    cursor.execute(DELETE_CUSTOMER, {"id": _any(cursor, chance, "customer")})
    return cursor.rowcount


def delete_and_return(cursor: Cursor, chance: Random) -> int:
    """The same id is deleted and inserted in one transaction."""
    customer = _any(cursor, chance, "customer")
    if customer is None:
        return 0
    cursor.execute(DELETE_CUSTOMER, {"id": customer})
    cursor.execute(RETURN_CUSTOMER, {"id": customer, "reference": _new_uuid(chance)})
    return cursor.rowcount


def change_customer_key(cursor: Cursor, chance: Random) -> int:
    cursor.execute(MOVE_CUSTOMER, {"id": _any(cursor, chance, "customer")})
    return cursor.rowcount


def change_product_key(cursor: Cursor, chance: Random) -> int:
    """The row moves to a new id with its description left out of the log; its order items follow."""
    cursor.execute(MOVE_PRODUCT, {"id": _any(cursor, chance, "product")})
    return cursor.rowcount


def change_line_number(cursor: Cursor, chance: Random) -> int:
    """One part of a composite key."""
    cursor.execute(MOVE_LINE, {"id": _any(cursor, chance, "order")})
    return cursor.rowcount


def swap_keys(cursor: Cursor, chance: Random) -> int:
    """Two customers change places by way of a third id, in one transaction."""
    first, second = _any(cursor, chance, "customer"), _any(cursor, chance, "customer")
    if first is None or second is None or first == second:
        return 0
    for old, new in ((first, -first), (second, first), (-first, second)):
        cursor.execute(RENAME_CUSTOMER, {"old": old, "new": new})
    return cursor.rowcount


def insert_and_delete(cursor: Cursor, chance: Random) -> int:
    order = insert_order(cursor, chance)
    cursor.execute(DELETE_ORDER, {"id": order})
    return cursor.rowcount


def write_odd_values(cursor: Cursor, chance: Random) -> int:
    """NULL, nothing, and everything that looks like NULL or nothing."""
    odd = {name: chance.choice(values) for name, values in ODD_VALUES.items()}
    cursor.execute(ODD_ORDER, odd | {"id": _any(cursor, chance, "order")})
    changed = cursor.rowcount
    cursor.execute(ODD_CUSTOMER, odd | {"id": _any(cursor, chance, "customer")})
    return changed + cursor.rowcount


def roll_back(cursor: Cursor, chance: Random) -> int:
    done = insert_order(cursor, chance) + delete_order(cursor, chance)
    cursor.connection.rollback()
    return done


def roll_back_to_savepoint(cursor: Cursor, chance: Random) -> int:
    """What stands before the savepoint and after it counts."""
    before = insert_customer(cursor, chance)
    cursor.execute("SAVEPOINT half")
    delete_order(cursor, chance)
    insert_order(cursor, chance)
    cursor.execute("ROLLBACK TO SAVEPOINT half")
    return before + update_order(cursor, chance)


def work_for_long(cursor: Cursor, chance: Random, stopping: Event) -> int:
    """Stays open for seconds, over the edges of slices: what it writes first and last has its start as update_time."""
    order = insert_order(cursor, chance)
    update_order(cursor, chance)
    update_beside_large_text(cursor, chance)
    stopping.wait(chance.uniform(1.0, 4.0))
    cursor.execute(UPDATE_ORDER, {"id": order, "status": 4, "price": 1})
    return cursor.rowcount


KINDS = (
    Kind(name="order inserts", share=24, run=insert_order),
    Kind(name="customer inserts", share=5, run=insert_customer),
    Kind(name="product inserts", share=2, run=insert_product),
    Kind(name="order updates", share=24, run=update_order),
    Kind(name="customer updates", share=8, run=update_customer),
    Kind(name="updates beside a large text", share=12, run=update_beside_large_text),
    Kind(name="large text updates", share=2, run=update_large_text),
    Kind(name="order deletes", share=6, run=delete_order),
    Kind(name="customer deletes", share=1, run=delete_customer),
    Kind(name="deletes with return", share=1, run=delete_and_return),
    Kind(name="customer key changes", share=2, run=change_customer_key),
    Kind(name="product key changes", share=1, run=change_product_key),
    Kind(name="line number changes", share=2, run=change_line_number),
    Kind(name="key swaps", share=1, run=swap_keys),
    Kind(name="inserts with delete", share=2, run=insert_and_delete),
    Kind(name="odd values", share=4, run=write_odd_values),
    Kind(name="rollbacks", share=1, run=roll_back),
    Kind(name="savepoints", share=2, run=roll_back_to_savepoint),
)
