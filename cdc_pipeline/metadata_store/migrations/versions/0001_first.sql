-- Schema cdc as of revision 0001. Offsets and positions order as text of 16 hexadecimal digits, so they collate "C".
-- One text range per slice: texts that share the prefix table:partition lie together, so no two tables meet in it.

CREATE TYPE cdc.offset_range AS RANGE (subtype = text, collation = "C");

CREATE TABLE cdc.stream (
    name TEXT NOT NULL,
    source_system_identifier TEXT NOT NULL,
    source_timeline INTEGER NOT NULL,
    slot TEXT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE cdc.stream_partition (
    stream TEXT NOT NULL,
    stream_partition INTEGER NOT NULL,
    next_offset TEXT COLLATE "C",
    watermark timestamptz,
    assignment_epoch BIGINT DEFAULT 0 NOT NULL,
    assignment_owner TEXT,
    label_start timestamptz,
    label_end timestamptz,
    PRIMARY KEY (stream, stream_partition),
    FOREIGN KEY (stream) REFERENCES cdc.stream (name)
);

CREATE TABLE cdc.source_table (
    table_id SERIAL NOT NULL,
    table_uuid UUID NOT NULL,
    stream TEXT NOT NULL,
    database_name TEXT NOT NULL,
    schema_name TEXT NOT NULL,
    table_name TEXT NOT NULL,
    source_oid BIGINT NOT NULL,
    state TEXT DEFAULT 'registered' NOT NULL,
    parked_reason TEXT,
    next_slice_number BIGINT DEFAULT 1 NOT NULL,
    cutoff_offset TEXT COLLATE "C",
    cutoff_version TEXT COLLATE "C",
    cutoff_time timestamptz,
    schema_id TEXT,
    settings JSONB NOT NULL,
    key_low JSONB,
    key_high JSONB,
    PRIMARY KEY (table_id),
    UNIQUE (database_name, schema_name, table_name),
    CHECK (state IN ('registered', 'snapshotting', 'live', 'parked')),
    UNIQUE (table_uuid),
    FOREIGN KEY (stream) REFERENCES cdc.stream (name)
);

CREATE TABLE cdc.boundary (
    boundary_id BIGSERIAL NOT NULL,
    stream TEXT NOT NULL,
    position TEXT COLLATE "C" NOT NULL,
    commit_time timestamptz NOT NULL,
    label_start timestamptz NOT NULL,
    label_end timestamptz NOT NULL,
    requested BOOLEAN NOT NULL,
    registered_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (boundary_id),
    UNIQUE (stream, position),
    FOREIGN KEY (stream) REFERENCES cdc.stream (name)
);

CREATE TABLE cdc.table_schema (
    table_id INTEGER NOT NULL,
    schema_id TEXT NOT NULL,
    document JSONB NOT NULL,
    first_offset TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (table_id, schema_id),
    FOREIGN KEY (table_id) REFERENCES cdc.source_table (table_id)
);

CREATE TABLE cdc.claim (
    claim_id UUID NOT NULL,
    table_id INTEGER NOT NULL,
    first_number BIGINT NOT NULL,
    last_number BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    owner TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT DEFAULT 'claimed' NOT NULL,
    slices BIGINT DEFAULT 0 NOT NULL,
    rows_read BIGINT DEFAULT 0 NOT NULL,
    rows_inserted BIGINT DEFAULT 0 NOT NULL,
    rows_updated BIGINT DEFAULT 0 NOT NULL,
    rows_deleted BIGINT DEFAULT 0 NOT NULL,
    rows_ignored BIGINT DEFAULT 0 NOT NULL,
    bytes BIGINT DEFAULT 0 NOT NULL,
    seconds DOUBLE PRECISION DEFAULT 0 NOT NULL,
    lake_version BIGINT,
    error TEXT,
    started_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    finished_at timestamptz,
    PRIMARY KEY (claim_id),
    CHECK (state IN ('claimed', 'applied', 'failed')),
    CONSTRAINT claim_bounds CHECK (first_number <= last_number),
    FOREIGN KEY (table_id) REFERENCES cdc.source_table (table_id)
);

CREATE UNIQUE INDEX claim_open ON cdc.claim (table_id) WHERE state = 'claimed';

CREATE INDEX claim_first_number ON cdc.claim (table_id, first_number);

CREATE TABLE cdc.lease (
    table_id INTEGER NOT NULL,
    owner TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    expires_at timestamptz NOT NULL,
    acquired_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    PRIMARY KEY (table_id),
    FOREIGN KEY (table_id) REFERENCES cdc.source_table (table_id)
);

CREATE TABLE cdc.quarantine (
    quarantine_id BIGSERIAL NOT NULL,
    table_id INTEGER NOT NULL,
    stream_partition INTEGER NOT NULL,
    version TEXT COLLATE "C" NOT NULL,
    start_offset TEXT COLLATE "C" NOT NULL,
    end_offset TEXT COLLATE "C" NOT NULL,
    reason TEXT NOT NULL,
    "column" TEXT NOT NULL,
    payload JSON NOT NULL,
    state TEXT DEFAULT 'waiting' NOT NULL,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (quarantine_id),
    CHECK (state IN ('waiting', 'replayed')),
    FOREIGN KEY (table_id) REFERENCES cdc.source_table (table_id)
);

CREATE INDEX quarantine_waiting ON cdc.quarantine (table_id) WHERE state = 'waiting';

CREATE TABLE cdc.slice (
    table_id INTEGER NOT NULL,
    number BIGINT NOT NULL,
    slice_id TEXT NOT NULL,
    boundary_id BIGINT NOT NULL,
    stream_partition INTEGER NOT NULL,
    label_start timestamptz NOT NULL,
    label_end timestamptz NOT NULL,
    start_offset TEXT COLLATE "C" NOT NULL,
    end_offset TEXT COLLATE "C" NOT NULL,
    path TEXT,
    size_bytes BIGINT DEFAULT 0 NOT NULL,
    rows BIGINT DEFAULT 0 NOT NULL,
    sha256 TEXT,
    schema_id TEXT,
    key_changes BIGINT DEFAULT 0 NOT NULL,
    partial_rows BIGINT DEFAULT 0 NOT NULL,
    truncates BIGINT DEFAULT 0 NOT NULL,
    key_ranges JSONB DEFAULT '[]' NOT NULL,
    state TEXT DEFAULT 'registered' NOT NULL,
    claim_id UUID,
    registered_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    applied_at timestamptz,
    PRIMARY KEY (table_id, number),
    UNIQUE (table_id, slice_id),
    UNIQUE (table_id, boundary_id, stream_partition),
    FOREIGN KEY (table_id, schema_id) REFERENCES cdc.table_schema (table_id, schema_id),
    CHECK (state IN ('registered', 'applied', 'superseded')),
    CONSTRAINT slice_range CHECK (start_offset < end_offset),
    CONSTRAINT slice_file CHECK ((path IS NULL AND sha256 IS NULL AND rows = 0) OR (path IS NOT NULL AND sha256 IS NOT NULL AND schema_id IS NOT NULL AND rows > 0)),
    CONSTRAINT slice_ranges_disjoint EXCLUDE USING gist (cdc.offset_range(
    table_id::text || ':' || stream_partition::text || ':' || start_offset,
    table_id::text || ':' || stream_partition::text || ':' || end_offset) WITH &&),
    FOREIGN KEY (table_id) REFERENCES cdc.source_table (table_id),
    FOREIGN KEY (boundary_id) REFERENCES cdc.boundary (boundary_id),
    FOREIGN KEY (claim_id) REFERENCES cdc.claim (claim_id)
);

CREATE INDEX slice_registered ON cdc.slice (table_id, number) WHERE state = 'registered';

CREATE INDEX slice_waiting ON cdc.slice (table_id, number) WHERE state = 'registered' AND path IS NOT NULL;

CREATE INDEX slice_with_file ON cdc.slice (table_id, number) WHERE path IS NOT NULL;

CREATE TABLE cdc.snapshot (
    snapshot_id TEXT NOT NULL,
    table_id INTEGER NOT NULL,
    state TEXT DEFAULT 'exporting' NOT NULL,
    cutoff_offset TEXT COLLATE "C" NOT NULL,
    cutoff_version TEXT COLLATE "C" NOT NULL,
    cutoff_time timestamptz NOT NULL,
    exported_snapshot TEXT,
    schema_id TEXT NOT NULL,
    fence_number BIGINT,
    lake_version BIGINT,
    rows BIGINT DEFAULT 0 NOT NULL,
    files BIGINT DEFAULT 0 NOT NULL,
    bytes BIGINT DEFAULT 0 NOT NULL,
    error TEXT,
    started_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    finished_at timestamptz,
    PRIMARY KEY (snapshot_id),
    FOREIGN KEY (table_id, schema_id) REFERENCES cdc.table_schema (table_id, schema_id),
    CHECK (state IN ('exporting', 'staging', 'compacting', 'publishing', 'published', 'failed', 'abandoned')),
    FOREIGN KEY (table_id) REFERENCES cdc.source_table (table_id)
);

CREATE UNIQUE INDEX snapshot_active ON cdc.snapshot (table_id) WHERE state NOT IN ('published', 'failed', 'abandoned');

CREATE TABLE cdc.snapshot_task (
    snapshot_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    state TEXT DEFAULT 'waiting' NOT NULL,
    attempt INTEGER DEFAULT 0 NOT NULL,
    slot TEXT,
    lease_expires_at timestamptz,
    input JSONB NOT NULL,
    output JSONB,
    rows BIGINT DEFAULT 0 NOT NULL,
    bytes BIGINT DEFAULT 0 NOT NULL,
    error TEXT,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    started_at timestamptz,
    finished_at timestamptz,
    PRIMARY KEY (snapshot_id, kind, ordinal),
    CHECK (kind IN ('export', 'stage', 'compact')),
    CHECK (state IN ('waiting', 'claimed', 'done', 'failed')),
    FOREIGN KEY (snapshot_id) REFERENCES cdc.snapshot (snapshot_id)
);

CREATE INDEX snapshot_task_open ON cdc.snapshot_task (snapshot_id, kind, ordinal) WHERE state IN ('waiting', 'claimed');
