"""The transactions of the shop's users in MariaDB."""

from functools import partial

from cdc_pipeline.demo.transactions import (
    DELETE_CUSTOMER,
    INSERT_CUSTOMER,
    PAUSE,
    RETURN_CUSTOMER,
    SWAP_CUSTOMERS,
    Kind,
)

_ANY_ROWS = """
SELECT {table}_id FROM {table}s
WHERE {table}_id >= (SELECT CAST(max({table}_id) * %(place)s AS SIGNED) FROM {table}s)
ORDER BY {table}_id LIMIT {rows} FOR {lock} SKIP LOCKED
"""
_PLACE = "(SELECT CAST(max({table}_id) * %(place)s AS SIGNED) FROM {table}s)"
_ANY_CUSTOMER, _ANY_PRODUCT = (_PLACE.format(table=table) for table in ("customer", "product"))
_INSERT_PRODUCT = """
INSERT INTO products (title, description, price, weight, labels) VALUES ('new', %(text)s, %(price)s, %(weight)s, 'new')
"""
_INSERT_ORDER = (
    f"""
INSERT INTO orders (customer_id, note, meta, flags, is_gift)
VALUES ({_ANY_CUSTOMER}, 'live', '{{"channel": "live"}}', %(number)s, %(is_gift)s)
""",
    f"""
INSERT INTO order_items (order_id, line_no, product_id, quantity, unit_price, discount)
SELECT LAST_INSERT_ID(), seq, {_ANY_PRODUCT}, seq * 2, %(price)s, %(weight)s FROM seq_1_to_4 WHERE seq <= %(number)s
""",
)
_DELETE_NEW_ORDER = (
    "DELETE FROM order_items WHERE order_id = LAST_INSERT_ID()",
    "DELETE FROM orders WHERE order_id = LAST_INSERT_ID()",
)
_UPDATE_ORDER = """
UPDATE orders SET status = %(number)s, total = %(price)s, meta = json_object('changed', %(price)s),
                  due = now(3), updated_at = now(6)
WHERE order_id = %(id)s
"""
_UPDATE_CUSTOMER = """
UPDATE customers SET loyalty = loyalty MOD 200 + 1, is_active = NOT is_active, credit = %(price)s, updated_at = now(6)
WHERE customer_id = %(id)s
"""
_UPDATE_PRICE = "UPDATE products SET price = %(price)s, updated_at = now(6) WHERE product_id = %(id)s"
_UPDATE_TEXT = "UPDATE products SET description = %(text)s, updated_at = now(6) WHERE product_id = %(id)s"
_DELETE_ORDER = (
    "DELETE FROM order_items WHERE order_id = %(id)s",
    "DELETE FROM orders WHERE order_id = %(id)s",
)
_MOVE_LINES = "UPDATE order_items SET line_no = line_no + 100 WHERE order_id = %(id)s AND line_no < 100"
_VISIT = "INSERT INTO visits (customer_id, page) VALUES (%(number)s, '/products'), (%(number)s, '/products')"
_CHANGE_VISIT = "UPDATE visits SET page = '/orders' WHERE customer_id = %(number)s AND page = '/products' LIMIT 1"
_FORGET_VISIT = "DELETE FROM visits WHERE customer_id = %(number)s LIMIT 1"
_ODD_ORDER = "UPDATE orders SET note = %(note)s, meta = %(meta)s, total = %(amount)s WHERE order_id = %(id)s"
_ODD_CUSTOMER = """
UPDATE customers SET full_name = coalesce(%(note)s, ''), birthday = %(day)s, credit = %(amount)s,
                     preferences = %(meta)s, picture = %(bytes)s, updated_at = now(6)
WHERE customer_id = %(id)s
"""

_kind = partial(Kind, any_rows=_ANY_ROWS)
MARIADB_KINDS = (
    _kind(name="order inserts", share=24, statements=_INSERT_ORDER),
    _kind(name="customer inserts", share=5, statements=(INSERT_CUSTOMER,)),
    _kind(name="product inserts", share=2, statements=(_INSERT_PRODUCT,)),
    _kind(name="order updates", share=24, table="order", statements=(_UPDATE_ORDER,)),
    _kind(name="customer updates", share=8, table="customer", statements=(_UPDATE_CUSTOMER,)),
    _kind(name="updates beside a large text", share=12, table="product", statements=(_UPDATE_PRICE, _UPDATE_PRICE)),
    _kind(name="large text updates", share=2, table="product", statements=(_UPDATE_TEXT,)),
    _kind(name="order deletes", share=6, table="order", statements=_DELETE_ORDER),
    _kind(name="customer deletes", share=1, table="customer", statements=(DELETE_CUSTOMER,)),
    _kind(name="deletes with return", share=1, table="customer", statements=(DELETE_CUSTOMER, RETURN_CUSTOMER)),
    _kind(name="key swaps", share=1, table="customer", statements=SWAP_CUSTOMERS),
    _kind(name="line number changes", share=2, table="order", statements=(_MOVE_LINES,)),
    _kind(name="inserts with delete", share=2, statements=(*_INSERT_ORDER, *_DELETE_NEW_ORDER)),
    _kind(name="visits", share=6, statements=(_VISIT, _CHANGE_VISIT)),
    _kind(name="forgotten visits", share=1, statements=(_FORGET_VISIT,)),
    _kind(name="odd orders", share=2, table="order", statements=(_ODD_ORDER,)),
    _kind(name="odd customers", share=2, table="customer", statements=(_ODD_CUSTOMER,)),
    _kind(name="rollbacks", share=1, table="order", statements=(*_INSERT_ORDER, *_DELETE_ORDER, "ROLLBACK")),
    _kind(
        name="savepoints",
        share=2,
        table="order",
        statements=(
            *(_UPDATE_ORDER, "SAVEPOINT half", *_DELETE_ORDER, "ROLLBACK TO SAVEPOINT half"),
            *_INSERT_ORDER,
        ),
    ),
)
MARIADB_LONG = _kind(
    name="long transactions",
    share=1,
    table="order",
    statements=(*_INSERT_ORDER, _UPDATE_ORDER, PAUSE, _UPDATE_ORDER),
)
