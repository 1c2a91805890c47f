"""Refuses tables whose generated columns prevent reading them, or writing to them once they are published."""

from collections.abc import Sequence

import psycopg2.extensions

from cdc_pipeline.errors import SourceError
from cdc_pipeline.sources.postgres.publication import FIRST_VERSION_WITH_GENERATED, Publication
from cdc_pipeline.sources.postgres.tables import STORED, VIRTUAL, CatalogueTable


def check_generated(found: CatalogueTable, key: Sequence[str]) -> None:
    """Raises SourceError for generated columns whose values do not follow from the table's events."""
    generated = [name for name in key if name not in found.columns]
    if generated:
        raise SourceError(
            f"the id of {found.name} has the generated column {generated[0]!r}",
            expected="an id of columns that are written: deletes do not contain others",
            remedy="set id in pipeline.yml to such columns",
        )
    if found.computed_otherwise:
        raise SourceError(
            f"partitions of {found.name} compute {', '.join(found.computed_otherwise)} otherwise than itself",
            expected="one expression: an event does not name its partition",
            remedy="give the partitions the expression of the table, or list them instead of it",
        )


def check_writes_go_on(
    connection: psycopg2.extensions.connection, found: CatalogueTable, publication: Publication | None
) -> None:
    """Raises SourceError if the source would refuse updates and deletes of the table once it is published."""
    if connection.server_version < FIRST_VERSION_WITH_GENERATED or not found.has_whole_rows:
        return
    if VIRTUAL in found.generated:
        raise SourceError(
            f"{found.name} has REPLICA IDENTITY FULL and virtual generated columns: PostgreSQL refuses its updates and"
            " deletes once it is published",
            expected="another replica identity, or stored columns",
            remedy="give it a key and that as its replica identity, or make those columns STORED",
        )
    if STORED in found.generated and publication is not None and not publication.tells_generated:
        raise SourceError(
            f"{found.name} has REPLICA IDENTITY FULL and generated columns: PostgreSQL refuses its updates and deletes"
            " once this publication holds it",
            expected="a publication with publish_generated_columns = stored",
            remedy="run what cdc setup-source --print-sql prints",
        )
