-- The read-only role of the inspection views. Where the user may not create roles, somebody else creates it.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'cdc_reader') THEN
        CREATE ROLE cdc_reader NOLOGIN;
        ALTER ROLE cdc_reader SET default_transaction_read_only = on;
        ALTER ROLE cdc_reader SET statement_timeout = '15s';
    END IF;
EXCEPTION
    WHEN insufficient_privilege OR duplicate_object OR unique_violation THEN NULL;
END $$;
