"""Creates the databases NAME… that are missing, on the server of libpq's variables."""

import sys

from cdc_pipeline.stack.postgres import create_database

if __name__ == "__main__":
    for name in sys.argv[1:]:
        create_database("dbname=postgres", name)
