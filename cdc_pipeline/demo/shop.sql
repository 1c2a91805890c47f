-- A small shop: composite and uuid ids, an enum, arrays, documents, money, and texts that are stored out of line.
DO $$ BEGIN
    CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped', 'returned');
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;

CREATE TABLE IF NOT EXISTS customers (
    customer_id bigint PRIMARY KEY,
    reference uuid NOT NULL,
    name text NOT NULL,
    is_active boolean NOT NULL DEFAULT true,
    birthday date,
    tags text[],
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS products (
    product_id integer PRIMARY KEY,
    title text NOT NULL,
    price numeric(10, 2) NOT NULL,
    weight double precision,
    picture bytea,
    description text,
    updated_at timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE products ALTER COLUMN description SET STORAGE EXTERNAL;

CREATE TABLE IF NOT EXISTS orders (
    order_id bigint PRIMARY KEY,
    customer_id bigint NOT NULL,
    status order_status NOT NULL DEFAULT 'new',
    total numeric(12, 2) NOT NULL DEFAULT 0,
    note text,
    attributes jsonb,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS order_items (
    order_id bigint NOT NULL,
    line_no smallint NOT NULL,
    product_id integer NOT NULL,
    quantity integer NOT NULL,
    unit_price numeric(10, 2) NOT NULL,
    PRIMARY KEY (order_id, line_no)
);

CREATE SEQUENCE IF NOT EXISTS fresh_id START 1000000;

INSERT INTO customers (customer_id, reference, name, birthday, tags, created_at, updated_at)
SELECT n, md5(n::text)::uuid, 'customer ' || n, DATE '1950-01-01' + n % 20000,
       CASE n % 4 WHEN 0 THEN NULL WHEN 1 THEN '{}' ELSE ARRAY['tag ' || n % 7, NULL, 'a "quoted", one'] END,
       TIMESTAMPTZ '2024-01-01 00:00+00' + n * INTERVAL '1 minute', TIMESTAMPTZ '2024-06-01 00:00+00'
FROM generate_series(1, 2000) AS n
WHERE NOT EXISTS (SELECT FROM customers);

INSERT INTO products (product_id, title, price, weight, picture, description, updated_at)
SELECT n, 'product ' || n, n % 500 + 0.99, n / 7.0, decode(md5(n::text), 'hex'), repeat('long text ' || n || ' ', 600),
       TIMESTAMPTZ '2024-06-01 00:00+00'
FROM generate_series(1, 500) AS n
WHERE NOT EXISTS (SELECT FROM products);

INSERT INTO orders (order_id, customer_id, status, total, note, attributes, created_at, updated_at)
SELECT n, n % 2000 + 1, (ENUM_RANGE(NULL::order_status))[n % 4 + 1], n % 900 + 0.5,
       CASE n % 3 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'note — ' || n END,
       CASE n % 5 WHEN 0 THEN NULL ELSE jsonb_build_object('channel', 'web', 'lines', n % 3 + 1) END,
       TIMESTAMPTZ '2024-01-01 00:00+00' + n * INTERVAL '6 minutes',
       TIMESTAMPTZ '2024-01-01 00:00+00' + n * INTERVAL '7 minutes'
FROM generate_series(1, 20000) AS n
WHERE NOT EXISTS (SELECT FROM orders);

INSERT INTO order_items (order_id, line_no, product_id, quantity, unit_price)
SELECT o, line, (o * 3 + line) % 500 + 1, line * 2, (o + line) % 500 + 0.99
FROM generate_series(1, 20000) AS o, generate_series(1, 3) AS line
WHERE NOT EXISTS (SELECT FROM order_items);
