"""A live pipeline for crash tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_pipeline.launcher.postgres import PostgresServer
from tests.crash.world import World, new_world, take_snapshot
from tests.support.pipelines import set_up_and_consume


@pytest.fixture
def new(postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    """A source with rows that no process has looked at yet."""
    with new_world(postgres, tmp_path) as world:
        world.change()
        yield world


@pytest.fixture
def world(new: World) -> World:
    """The same with every table published in the lake."""
    with new.process() as pipeline:
        set_up_and_consume(pipeline)
        states = [snapshot.state for snapshot in take_snapshot(pipeline, new.tables)]
    assert states == ["published"] * len(states)
    return new
