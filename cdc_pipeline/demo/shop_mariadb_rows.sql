-- The first rows of the shop in MariaDB, as many as customers, products, orders and lines say.

INSERT INTO customers
SELECT seq, uuid(), concat('Customer ', seq), DATE '1950-01-01' + INTERVAL seq * 37 MOD 20000 DAY, seq MOD 5,
       seq MOD 9 > 0, IF(seq MOD 4 > 0, seq * 7919 MOD 100000 / 100, NULL),
       IF(seq MOD 3 = 0, NULL, json_object('language', 'de', 'level', seq)),
       IF(seq MOD 2 = 0, unhex(left(sha2(seq, 224), 32)), NULL),
       TIMESTAMP '2026-01-01 00:00:00' + INTERVAL seq MINUTE, TIMESTAMP '2026-04-01 00:00:00'
FROM seq_1_to_1000000 WHERE seq <= %(customers)s;

-- Texts of 5 to 20 kB.
INSERT INTO products
SELECT seq, concat('Product ', seq), repeat(left(sha2(seq, 224), 32), 157 + seq * 37 MOD 468), seq * 7919 MOD 50000 / 100,
       seq / 7e0, seq MOD 8, TIMESTAMP '2026-01-01 00:00:00', TIMESTAMP '2026-01-01 00:00:00' + INTERVAL seq HOUR
FROM seq_1_to_1000000 WHERE seq <= %(products)s;

-- About three months of orders.
INSERT INTO orders
SELECT seq, seq * 7919 MOD %(customers)s + 1, seq MOD 4 + 1, seq * 31 MOD 90000 / 100,
       CASE seq MOD 3 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE concat('note — ', seq) END,
       IF(seq MOD 7 > 0, json_object('channel', 'web', 'weight', seq / 3e0), NULL),
       IF(seq MOD 2 = 0, TIMESTAMP '2026-02-01 00:00:00.125' + INTERVAL seq SECOND, NULL), seq MOD 32,
       CASE seq MOD 3 WHEN 0 THEN NULL WHEN 1 THEN true ELSE false END,
       TIMESTAMP '2026-01-01 00:00:00' + INTERVAL seq * 6 MINUTE,
       TIMESTAMP '2026-01-01 00:00:00' + INTERVAL seq * 7 MINUTE
FROM seq_1_to_1000000 WHERE seq <= %(orders)s;

INSERT INTO visits (customer_id, page) VALUES (1, '/');

INSERT INTO order_items
SELECT o.seq, l.seq, (o.seq * 31 + l.seq * 7) MOD %(products)s + 1, (o.seq + l.seq) MOD 9 + 1,
       o.seq * l.seq MOD 50000 / 100, IF((o.seq + l.seq) MOD 4 = 0, l.seq / 30e0, NULL)
FROM seq_1_to_1000000 AS o JOIN seq_1_to_100 AS l WHERE o.seq <= %(orders)s AND l.seq <= %(lines)s;
