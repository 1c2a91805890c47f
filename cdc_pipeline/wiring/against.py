"""Compares the lake with a database that feeds the pipeline's source by way of something else, such as Kafka."""

import re
from collections.abc import Sequence
from dataclasses import replace

from cdc_pipeline.errors import SettingsError, SourceError
from cdc_pipeline.operations.verification import Verified
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.mysql import MysqlSource
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.sources.protocol import Source
from cdc_pipeline.wiring.adapters import source_of
from cdc_pipeline.wiring.pipeline import Pipeline

_OPTION = "--against, or CDC_AGAINST"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)")


def verify_against(pipeline: Pipeline, tables: Sequence[TableName], url: str) -> tuple[Verified, ...]:
    """Applies the registered slices of the tables, then compares every row with the database at `url`.

    See `Verification.verify_against` for what the result proves. Raises SettingsError for a URL of another kind, and
    SourceError before anything is applied for a database that cannot be read.
    """
    try:
        database = _database_at(url, pipeline)
        with database.hold_position("verify", name=pipeline.new_id().hex[:8]):
            pass
    except (SourceError, SettingsError) as error:
        found, remedy = (_of_the_option(text) for text in (error.found, error.remedy))
        raise type(error)(found, expected=error.expected, remedy=remedy) from error
    pipeline.slice_runs().apply(tables, by_hand=True)
    return pipeline.verification().verify_against(tables, database)


def _of_the_option(text: str) -> str:
    """What an error says of the source's URL, said of the option."""
    return text.replace("pipeline.yml or CDC_SOURCE__URL", _OPTION).replace("source.url", _OPTION)


def _database_at(url: str, pipeline: Pipeline) -> Source:
    found = _SCHEME.match(url)
    scheme = found[0].lower() if found else ""
    if scheme in ("postgresql", "postgres"):
        source: PostgresSource | MysqlSource = PostgresSource(kind="postgres", url=url)
    elif scheme in ("mysql", "mariadb"):
        source = MysqlSource(kind="mysql", url=url)
    else:
        raise SettingsError(
            f"the lake cannot be compared with a database of the kind {scheme!r}",
            expected="postgresql://user@host:port/database or mysql://user@host:port",
            remedy=f"correct {_OPTION}",
        )
    settings, endpoints = pipeline.settings, pipeline.endpoints
    return source_of(
        settings.model_copy(update={"source": source}), replace(endpoints, source_url=url), pipeline.on_step
    )
