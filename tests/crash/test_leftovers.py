"""What killed processes left in the bucket is deleted once it is old."""

from datetime import timedelta

import pytest

from cdc_pipeline.areas import CDC_EVENT, DB_SNAPSHOT, STAGING_AREA, stream_prefix, table_prefix
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.test_retention import cleaned, counts, keys
from tests.crash.world import World

YOUNG = timedelta(days=6)


def test_the_copy_of_a_killed_verify_goes(world: World) -> None:
    cleaned(world)
    with pytest.raises(Crash), world.process(Failpoint(Site("verification_file.put", Moment.AFTER, 1))) as pipeline:
        pipeline.verification().verify(world.tables[:1])
    world.bury_the_dead()
    assert len(keys(world, STAGING_AREA)) == 1
    assert counts(cleaned(world, YOUNG))["snapshot files"] == 0
    assert counts(cleaned(world, dry_run=True))["snapshot files"] == counts(cleaned(world))["snapshot files"] == 1
    assert keys(world, STAGING_AREA) == set()


def test_the_files_of_killed_puts_go(world: World) -> None:
    root = world.settings.folder / world.settings.lake
    areas = (CDC_EVENT, DB_SNAPSHOT, STAGING_AREA)
    folders = [stream_prefix(world.settings.name), *(table_prefix(area, world.tables[1]) for area in areas)]
    left = [root / folder / "deeper" / ".pending-1" for folder in folders]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    assert counts(cleaned(world, YOUNG))["unfinished files"] == 0
    assert counts(cleaned(world, dry_run=True))["unfinished files"] == counts(cleaned(world))["unfinished files"] == 4
    assert [path for path in left if path.exists()] == []
