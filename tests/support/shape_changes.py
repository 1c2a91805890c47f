"""Changes of a table's columns, types or partitions, and what each asks of the pipeline."""

from dataclasses import dataclass

CREATE = (
    "CREATE TYPE mood AS ENUM ('calm', 'cross')",
    "CREATE TYPE weight AS ENUM ('low', 'high')",
    "CREATE TYPE weights AS RANGE (subtype = weight)",
    "CREATE DOMAIN words AS text",
    "CREATE TYPE pair AS (a int, b words)",
    """CREATE TABLE orders (id int PRIMARY KEY, note text, price numeric(10,2), tag varchar(10), feels mood, old text,
    span weights DEFAULT '[low,high]', both_of pair DEFAULT '(1,x)')""",
    "CREATE TABLE customers (id int, note text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE customers_low PARTITION OF customers FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE customers_high PARTITION OF customers FOR VALUES FROM (100) TO (200)",
    "INSERT INTO orders SELECT n, 'n' || n, n, 't' || n, 'calm', 'old' FROM generate_series(1, 8) AS n",
    "INSERT INTO customers SELECT n, 'c' || n FROM generate_series(1, 4) AS n",
    "INSERT INTO customers SELECT n, 'c' || n FROM generate_series(101, 104) AS n",
)
NOTHING, FOLLOWED, RETAKEN = "nothing happens", "followed in place", "taken anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is done to the source, and what it asks of the pipeline."""

    answer: str
    statements: tuple[str, ...]
    table: str = "orders"


CHANGES = {
    "a column added": Change(answer=FOLLOWED, statements=("ALTER TABLE orders ADD size int",)),
    "a column with a constant default": Change(
        answer=FOLLOWED, statements=("ALTER TABLE orders ADD size text NOT NULL DEFAULT 'it''s, \"large\"'",)
    ),
    "a column with the moment as default": Change(
        answer=FOLLOWED, statements=("ALTER TABLE orders ADD made timestamptz DEFAULT now()",)
    ),
    "a column of arrays with a default": Change(
        answer=FOLLOWED, statements=("ALTER TABLE orders ADD sizes int[] DEFAULT '{1,NULL,3}'",)
    ),
    "columns with defaults that the text of an array would quote or part": Change(
        answer=FOLLOWED,
        statements=(
            """ALTER TABLE orders ADD area box DEFAULT '(1,1),(0,0)', ADD empty text DEFAULT '',
            ADD nothing text DEFAULT 'NULL', ADD braces text DEFAULT '{a,"b\\c"}',
            ADD words text[] DEFAULT '{"a,b",NULL}'""",
        ),
    ),
    "a serial column": Change(answer=RETAKEN, statements=("ALTER TABLE orders ADD number serial",)),
    "an identity column": Change(
        answer=RETAKEN, statements=("ALTER TABLE orders ADD number int GENERATED ALWAYS AS IDENTITY",)
    ),
    "a column with a volatile default": Change(
        answer=RETAKEN, statements=("ALTER TABLE orders ADD chance float8 DEFAULT random()",)
    ),
    "a column renamed": Change(answer=FOLLOWED, statements=("ALTER TABLE orders RENAME note TO words",)),
    "two columns with each other's names": Change(
        answer=FOLLOWED,
        statements=(
            """BEGIN; ALTER TABLE orders RENAME note TO middle; ALTER TABLE orders RENAME old TO note;
            ALTER TABLE orders RENAME middle TO old; COMMIT""",
        ),
    ),
    "a column dropped": Change(answer=FOLLOWED, statements=("ALTER TABLE orders DROP old",)),
    "a column dropped and added again": Change(
        answer=RETAKEN, statements=("ALTER TABLE orders DROP old", "ALTER TABLE orders ADD old text")
    ),
    "wider numbers and texts": Change(
        answer=FOLLOWED,
        statements=("ALTER TABLE orders ALTER price TYPE numeric(12,2)", "ALTER TABLE orders ALTER tag TYPE text"),
    ),
    "a longer text and a domain that takes every value": Change(
        answer=FOLLOWED,
        statements=("ALTER TABLE orders ALTER tag TYPE varchar(20)", "ALTER TABLE orders ALTER note TYPE words"),
    ),
    "wider integers": Change(
        answer=RETAKEN,
        statements=("ALTER TABLE orders ADD size int DEFAULT 7", "ALTER TABLE orders ALTER size TYPE bigint"),
    ),
    "values computed anew in the same type": Change(
        answer=RETAKEN, statements=("ALTER TABLE orders ALTER note TYPE text USING upper(note)",)
    ),
    "another type": Change(answer=RETAKEN, statements=("ALTER TABLE orders ALTER price TYPE int USING length(note)",)),
    "an enum value renamed": Change(answer=RETAKEN, statements=("ALTER TYPE mood RENAME VALUE 'calm' TO 'quiet'",)),
    "an enum value renamed that a range is over": Change(
        answer=RETAKEN, statements=("ALTER TYPE weight RENAME VALUE 'high' TO 'top'",)
    ),
    "an attribute added to a composite type": Change(
        answer=RETAKEN, statements=("ALTER TYPE pair ADD ATTRIBUTE c int",)
    ),
    "an attribute of a composite type dropped, and one of the same type added": Change(
        answer=RETAKEN, statements=("ALTER TYPE pair DROP ATTRIBUTE b", "ALTER TYPE pair ADD ATTRIBUTE c text")
    ),
    "all attributes of a composite type dropped": Change(
        answer=RETAKEN, statements=("ALTER TYPE pair DROP ATTRIBUTE a, DROP ATTRIBUTE b",)
    ),
    "an attribute of a composite type renamed, and the type of one": Change(
        answer=NOTHING,
        statements=("ALTER TYPE pair RENAME ATTRIBUTE b TO c", "ALTER DOMAIN words RENAME TO texts"),
    ),
    "an enum value added": Change(answer=NOTHING, statements=("ALTER TYPE mood ADD VALUE 'happy'",)),
    "what rows do not depend on": Change(
        answer=NOTHING,
        statements=(
            "ALTER TABLE orders ALTER note SET NOT NULL",
            "ALTER TABLE orders ADD CHECK (id > 0)",
            "COMMENT ON COLUMN orders.note IS 'words'",
            "ALTER TABLE orders ALTER note SET STATISTICS 5",
            "CREATE INDEX ON orders (tag)",
            "ANALYZE orders",
            "ALTER TABLE orders REPLICA IDENTITY FULL",
        ),
    ),
    "files written anew": Change(answer=NOTHING, statements=("VACUUM FULL orders", "CLUSTER orders USING orders_pkey")),
    "emptied": Change(answer=NOTHING, statements=("TRUNCATE orders RESTART IDENTITY CASCADE",)),
    "another key": Change(
        answer=RETAKEN,
        statements=("ALTER TABLE orders DROP CONSTRAINT orders_pkey", "ALTER TABLE orders ADD PRIMARY KEY (id, note)"),
    ),
    "the key renamed and back again, which between two looks nobody could tell": Change(
        answer=NOTHING, statements=("ALTER TABLE orders RENAME id TO number", "ALTER TABLE orders RENAME number TO id")
    ),
    "dropped and created again": Change(
        answer=RETAKEN,
        statements=(
            "DROP TABLE orders",
            "CREATE TABLE orders (id int PRIMARY KEY, note text)",
            "INSERT INTO orders VALUES (77, 'of the other table')",
        ),
    ),
    "an empty partition created": Change(
        answer=NOTHING,
        table="customers",
        statements=("CREATE TABLE customers_more PARTITION OF customers FOR VALUES FROM (200) TO (300)",),
    ),
    "a partition attached with its rows": Change(
        answer=RETAKEN,
        table="customers",
        statements=(
            "CREATE TABLE customers_more (id int NOT NULL PRIMARY KEY, note text)",
            "INSERT INTO customers_more VALUES (250, 'was there before')",
            "ALTER TABLE customers ATTACH PARTITION customers_more FOR VALUES FROM (200) TO (300)",
        ),
    ),
    "a partition filled and attached in one transaction": Change(
        answer=RETAKEN,
        table="customers",
        statements=(
            """BEGIN; CREATE TABLE customers_more (id int NOT NULL PRIMARY KEY, note text);
            INSERT INTO customers_more VALUES (250, 'was there before');
            ALTER TABLE customers ATTACH PARTITION customers_more FOR VALUES FROM (200) TO (300); COMMIT""",
        ),
    ),
    "a partition detached": Change(
        answer=RETAKEN,
        table="customers",
        statements=(
            "ALTER TABLE customers DETACH PARTITION customers_low",
            "INSERT INTO customers_low VALUES (50, 'x')",
        ),
    ),
    "a partition dropped": Change(answer=RETAKEN, table="customers", statements=("DROP TABLE customers_high",)),
    "a partition emptied": Change(answer=RETAKEN, table="customers", statements=("TRUNCATE customers_high",)),
    "a column added to all partitions": Change(
        answer=FOLLOWED, table="customers", statements=("ALTER TABLE customers ADD size int DEFAULT 3",)
    ),
}
