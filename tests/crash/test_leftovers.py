"""What killed processes left in the bucket is deleted once it is old; a killed repair is shown, and its mark ends."""

from datetime import timedelta

import pytest

from cdc_pipeline.areas import CDC_EVENT, DB_SNAPSHOT, STAGING_AREA, WARM_UPS, stream_prefix, table_prefix
from cdc_pipeline.steps import Moment
from tests.crash.failpoint import Crash, Failpoint, Site
from tests.crash.test_retention import cleaned, counts, keys
from tests.crash.world import World, take_snapshot
from tests.support.command_server import CommandServer
from tests.support.guarded import command_line

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


def test_what_a_killed_warm_up_left_goes(world: World) -> None:
    cleaned(world)
    with world.process() as pipeline:
        pipeline.warm_up().objects.put_if_absent("cdc-event/scratch.parquet", b"left")
    assert len(keys(world, WARM_UPS)) == 1
    assert counts(cleaned(world, YOUNG))["snapshot files"] == 0
    assert counts(cleaned(world, dry_run=True))["snapshot files"] == counts(cleaned(world))["snapshot files"] == 1
    assert keys(world, WARM_UPS) == set()


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


def test_the_mark_of_a_killed_repair_is_shown_until_the_next_snapshot(
    world: World, command_server: CommandServer
) -> None:
    things = world.tables[0]
    with pytest.raises(Crash), world.process(Failpoint(Site("verification_file.put", Moment.AFTER, 1))) as pipeline:
        pipeline.repair().run(things)
    world.bury_the_dead()
    line = command_line(world, command_server)
    line.write_settings(tables=[{"name": str(things)}])
    problem = "a repair of it was killed: repair it again"
    assert problem in " ".join(line.run("status").output.split())
    with world.process() as pipeline:
        take_snapshot(pipeline, [things])
        assert not pipeline.store.tables.table(things).under_repair
    assert "was killed" not in line.run("status").output
