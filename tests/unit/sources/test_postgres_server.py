"""Which PostgreSQL servers can be a source."""

from dataclasses import replace

import pytest

from cdc_pipeline.errors import SourceError, SourceGap
from cdc_pipeline.settings.postgres import PostgresSource
from cdc_pipeline.sources.postgres.catalogue import Server
from cdc_pipeline.sources.postgres.slot import check_server
from cdc_pipeline.sources.postgres.slot_guards import refuse_new_publication
from cdc_pipeline.sources.postgres.statements import needs_lock

SOURCE = PostgresSource(kind="postgres", url="postgresql://cdc@127.0.0.1/shop")
SERVER = Server(
    wal_level="logical",
    version_number=180_006,
    system_identifier="7",
    timeline=1,
    end_position=0,
    may_replicate=True,
    user="cdc",
    database="shop",
)


@pytest.mark.parametrize("version", [140_000, 180_006, 190_000])
def test_versions_from_14_to_19_are_read(version: int) -> None:
    check_server(replace(SERVER, version_number=version), SOURCE)


@pytest.mark.parametrize("version", [130_022, 200_000])
def test_older_and_newer_versions_are_refused(version: int) -> None:
    with pytest.raises(SourceError, match=rf"is PostgreSQL {version // 10_000}; expected a version from 14 to 19"):
        check_server(replace(SERVER, version_number=version), SOURCE)


def test_wal_level_replica_is_enough_from_version_19_on() -> None:
    check_server(replace(SERVER, version_number=190_000, wal_level="replica"), SOURCE)


@pytest.mark.parametrize(("version", "wal_level"), [(180_006, "replica"), (190_000, "minimal")])
def test_a_server_whose_log_cannot_be_decoded_is_refused(version: int, wal_level: str) -> None:
    with pytest.raises(SourceError, match=rf"wal_level = {wal_level}.*ALTER SYSTEM SET wal_level = 'logical'"):
        check_server(replace(SERVER, version_number=version, wal_level=wal_level), SOURCE)


@pytest.mark.parametrize("fixed", [140_018, 150_013, 160_009, 170_005, 180_000])
def test_a_table_is_locked_to_be_published_on_servers_before_the_fix_alone(fixed: int) -> None:
    assert not needs_lock(fixed)
    assert needs_lock(fixed - 1) is (fixed % 10_000 > 0)


def test_a_registered_stream_takes_no_new_publication_from_a_server_that_may_leave_out_its_changes() -> None:
    old, fixed = (replace(SERVER, version_number=number) for number in (160_008, 160_009))
    refuse_new_publication(SOURCE, fixed, is_published=False)
    refuse_new_publication(SOURCE, old, is_published=True)
    with pytest.raises(SourceGap, match=r"does not exist.*run cdc setup-source --begin-again, then cdc snapshot"):
        refuse_new_publication(SOURCE, old, is_published=False)
