"""Scripts that once failed, shrunk by the fuzzer, with the seed of their shop. Each ends with `!settle`."""

FOUND: dict[tuple[str, str], tuple[int, tuple[str, ...]]] = {
    ("postgres", "a new column, and the table emptied before any of its events"): (
        1,
        ('ALTER TABLE orders ADD "b" int[]', "!consume meanwhile 34 TRUNCATE orders, notes"),
    ),
    ("postgres", "a new column of a partitioned table with a default"): (
        1,
        ("ALTER TABLE customers ADD b date NOT NULL DEFAULT '2020-04-05'",),
    ),
    ("postgres", "a column dropped between inserts and deletes of a table without a key"): (
        0,
        (
            "INSERT INTO notes VALUES ('new', 3, NULL)",
            "ALTER TABLE notes DROP amount",
            "DELETE FROM notes WHERE body = 'new' OR body = 'b0'",
        ),
    ),
    ("postgres", "a partition created, filled and dropped between two looks"): (
        1,
        (
            "CREATE TABLE customers_3 PARTITION OF customers FOR VALUES FROM (300) TO (400)",
            "INSERT INTO customers VALUES (346)",
            "DROP TABLE customers_3",
        ),
    ),
    ("postgres", "a partition created, filled and emptied between two looks"): (
        1,
        (
            "CREATE TABLE customers_3 PARTITION OF customers FOR VALUES FROM (300) TO (400)",
            "INSERT INTO customers VALUES (346)",
            "TRUNCATE customers_3",
        ),
    ),
    ("postgres", "a partition changed while it was detached"): (
        1,
        (
            "ALTER TABLE customers DETACH PARTITION customers_0",
            "UPDATE customers_0 SET note = 'unseen'",
            "ALTER TABLE customers ATTACH PARTITION customers_0 FOR VALUES FROM (0) TO (100)",
        ),
    ),
    ("mariadb", "a column that was dropped, and a later one of its name"): (
        1,
        ("ALTER TABLE customers DROP size", "!consume", "ALTER TABLE customers ADD size SMALLINT NULL"),
    ),
    ("mariadb", "two columns of one type that exchange their names"): (
        1,
        (
            "ALTER TABLE orders ADD other VARCHAR(10) NULL",
            "UPDATE orders SET other = 'o'",
            "!settle",
            "ALTER TABLE orders RENAME COLUMN other TO tag, RENAME COLUMN tag TO other",
        ),
    ),
    ("mariadb", "a column dropped and added again in one statement, beside another one"): (
        0,
        ("ALTER TABLE orders DROP tag, ADD tag VARCHAR(10) NULL, ADD b INT NULL",),
    ),
    ("mariadb", "rows that come right after the metadata store was lost"): (
        1,
        ("!lose", "INSERT INTO customers VALUES (135, 'x', 21)"),
    ),
    ("mariadb", "an excluded column that was dropped before the table needs a new snapshot"): (
        0,
        (
            '!set notes {"exclude_columns": ["at"]}',
            "ALTER TABLE notes DROP `at`",
            "ALTER TABLE notes DROP `body`, ADD `body` text NULL",
        ),
    ),
    ("rows", "a Parquet file whose old ids are all NULL"): (63, ('[["truncate", ["orders", "customers", "notes"]]]',)),
    ("kinesis", "a metadata store from before a shard was split"): (
        402,
        ("!save", '[["roll", 0]]', "!settle", "!restore"),
    ),
    ("rows", "a rewind behind a snapshot of exported files that contains none of the changes"): (
        409,
        (
            '[["update", "customers", ["t1", "2"], {"note": "L1"}]]',
            "!settle",
            "!snapshot customers",
            '!rewind customers meanwhile 7 [["insert", "customers", {"region": "t5", "id": "5"}]]',
        ),
    ),
    ("kinesis", "a transaction of a table without a key, sent again right behind itself"): (
        11,
        (
            '[["insert", "notes", {"body": "t9", "amount": "9"}], ["insert", "notes", {"amount": "6"}]]',
            '[["again", 1]]',
        ),
    ),
    ("debezium", "the metadata store lost after a lake that began empty got its first rows"): (0, ("!lose",)),
    ("postgres", "a partition that was emptied while the metadata store was lost"): (
        1,
        ("!lose", "TRUNCATE customers_0"),
    ),
    ("postgres", "a column that was computed anew while the metadata store was lost"): (
        1,
        ("!lose", "ALTER TABLE orders ALTER price TYPE numeric(6,2) USING price + 1"),
    ),
    ("debezium", "an export from before slices that were deleted before the metadata store was lost"): (
        0,
        ("!clean", "!lose", "!snapshot customers"),
    ),
    ("postgres", "a metadata store from before a snapshot"): (
        0,
        ("!save", "!snapshot orders", "INSERT INTO orders (id) VALUES (77)", "!restore"),
    ),
    ("debezium", "a metadata store from before a snapshot of exported files"): (
        0,
        ("!save", "!snapshot orders", '[["insert", "orders", {"id": "77"}]]', "!restore"),
    ),
    ("postgres", "a column that was registered while a table was repaired as of a position before it"): (
        82057,
        (
            'ALTER TABLE orders ADD "c d" bool NOT NULL DEFAULT false',
            "!repair orders meanwhile 55 INSERT INTO customers (id, note) VALUES (66, 't22')",
        ),
    ),
}
