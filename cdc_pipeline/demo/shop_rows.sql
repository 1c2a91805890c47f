-- The shop's first rows: the same ones each time, as many as customers, products, orders and lines say.

INSERT INTO customers (customer_id, reference, full_name, birthday, loyalty, is_active, credit, preferences, picture,
                       created_at, updated_at)
SELECT n, md5('customer ' || n)::uuid, 'Customer ' || n, DATE '1950-01-01' + mod(n * 37, 20000), mod(n, 5), mod(n, 9) > 0,
       CASE WHEN mod(n, 4) > 0 THEN mod(n * 7919, 100000) / 100.0 END,
       CASE mod(n, 3) WHEN 0 THEN NULL WHEN 1 THEN '{}' ELSE jsonb_build_object('language', 'de', 'level', n) END,
       CASE WHEN mod(n, 2) = 0 THEN decode(md5(n::text), 'hex') END,
       TIMESTAMPTZ '2026-01-01 00:00+00' + n * INTERVAL '1 minute', TIMESTAMPTZ '2026-04-01 00:00+00'
FROM generate_series(1, %(customers)s) AS n;

-- Texts of 5 to 20 kB.
INSERT INTO products (product_id, title, description, price, weight, labels, created_at, updated_at)
SELECT n, 'Product ' || n, text_of.description, mod(n * 7919, 50000) / 100.0, n / 7.0::float8,
       CASE mod(n, 4) WHEN 0 THEN NULL WHEN 1 THEN '{}' ELSE ARRAY['label ' || mod(n, 7), NULL, 'a "quoted", one'] END,
       TIMESTAMPTZ '2026-01-01 00:00+00', TIMESTAMPTZ '2026-01-01 00:00+00' + n * INTERVAL '1 hour'
FROM generate_series(1, %(products)s) AS n
CROSS JOIN LATERAL (
    SELECT string_agg(md5(n || '/' || part), '' ORDER BY part) AS description
    FROM generate_series(1, 157 + mod(n * 37, 468)) AS part
) AS text_of;

-- About three months of orders.
INSERT INTO orders (order_id, customer_id, status, total, note, tags, meta, tracking, is_gift, created_at, updated_at)
SELECT n, mod(n * 7919, %(customers)s) + 1, (enum_range(NULL::order_status))[mod(n, 4) + 1], mod(n * 31, 90000) / 100.0,
       CASE mod(n, 3) WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'note — ' || n END,
       CASE mod(n, 5) WHEN 0 THEN NULL WHEN 1 THEN '{}' ELSE ARRAY['web', 'week ' || mod(n, 53)] END,
       CASE WHEN mod(n, 7) > 0 THEN jsonb_build_object('channel', 'web', 'weights', ARRAY[n / 3.0, NULL]) END,
       CASE WHEN mod(n, 2) = 0 THEN md5('parcel ' || n)::uuid END,
       CASE mod(n, 3) WHEN 0 THEN NULL WHEN 1 THEN true ELSE false END,
       TIMESTAMPTZ '2026-01-01 00:00+00' + n * INTERVAL '6 minutes',
       TIMESTAMPTZ '2026-01-01 00:00+00' + n * INTERVAL '7 minutes'
FROM generate_series(1, %(orders)s) AS n;

INSERT INTO order_items (order_id, line_no, product_id, quantity, unit_price, discount)
SELECT n, line, mod(n * 31 + line * 7, %(products)s) + 1, mod(n + line, 9) + 1, mod(n * line, 50000) / 100.0,
       CASE WHEN mod(n + line, 4) = 0 THEN line / 30.0::float8 END
FROM generate_series(1, %(orders)s) AS n CROSS JOIN generate_series(1, %(lines)s) AS line;

SELECT setval(pg_get_serial_sequence('customers', 'customer_id'), %(customers)s);
SELECT setval(pg_get_serial_sequence('products', 'product_id'), %(products)s);
SELECT setval(pg_get_serial_sequence('orders', 'order_id'), %(orders)s);
