-- The shop's tables in MariaDB. Executing it again changes nothing.

CREATE TABLE IF NOT EXISTS customers (
    customer_id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    reference char(36) NOT NULL,
    full_name varchar(200) NOT NULL,
    birthday date,
    loyalty tinyint unsigned NOT NULL DEFAULT 0,
    is_active boolean NOT NULL DEFAULT true,
    credit decimal(12, 2),
    preferences json,
    picture blob,
    created_at timestamp(6) NOT NULL DEFAULT current_timestamp(6),
    updated_at timestamp(6) NOT NULL DEFAULT current_timestamp(6)
);

CREATE TABLE IF NOT EXISTS products (
    product_id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    title varchar(100) NOT NULL,
    description mediumtext,
    price decimal(12, 2) NOT NULL,
    weight double,
    labels set('new', 'sale', 'gift'),
    created_at timestamp(6) NOT NULL DEFAULT current_timestamp(6),
    updated_at timestamp(6) NOT NULL DEFAULT current_timestamp(6)
);

CREATE TABLE IF NOT EXISTS orders (
    order_id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    customer_id bigint,
    status enum('new', 'paid', 'shipped', 'returned') NOT NULL DEFAULT 'new',
    total decimal(12, 2) NOT NULL DEFAULT 0,
    note text,
    meta json,
    due datetime(3),
    flags bit(5),
    is_gift boolean,
    created_at timestamp(6) NOT NULL DEFAULT current_timestamp(6),
    updated_at timestamp(6) NOT NULL DEFAULT current_timestamp(6)
);

CREATE TABLE IF NOT EXISTS order_items (
    order_id bigint NOT NULL,
    line_no smallint NOT NULL,
    product_id bigint NOT NULL,
    quantity int unsigned NOT NULL,
    unit_price decimal(12, 2) NOT NULL,
    discount double,
    PRIMARY KEY (order_id, line_no)
);

CREATE TABLE IF NOT EXISTS visits (
    customer_id bigint,
    page varchar(50) NOT NULL,
    seen_at timestamp(6) NOT NULL DEFAULT current_timestamp(6)
);
