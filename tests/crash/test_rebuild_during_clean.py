"""A metadata store that is rebuilt while `cdc clean` runs."""

import pytest

from cdc_pipeline.errors import RegistryError
from tests.crash.invariants import check
from tests.crash.test_rebuild import lose_store, rebuilt
from tests.crash.test_retention import apply_changes, cleaned, cleaned_by, counts
from tests.crash.test_rivals import Meanwhile
from tests.crash.world import World, go_on


def base_position(world: World) -> str | None:
    with world.process() as pipeline:
        return pipeline.cleanup().chain.base_position()


@pytest.mark.parametrize("is_cleaned", [False, True], ids=["all cut files", "a base"])
def test_a_clean_beside_a_rebuild_says_to_run_it_again_and_puts_no_base(world: World, *, is_cleaned: bool) -> None:
    """Between the choice of the base and the read of its rows, every boundary gets another id."""
    for is_due in (is_cleaned, False, False):
        apply_changes(world)
        if is_due:
            cleaned(world)
    before = base_position(world)
    meanwhile = Meanwhile("chain_base.list", lambda: rebuilt(world))
    with (
        world.process(meanwhile) as pipeline,
        pytest.raises(RegistryError, match=r"was rebuilt meanwhile.*run cdc clean again"),
    ):
        cleaned_by(pipeline)
    assert base_position(world) == before
    assert counts(cleaned(world))["cut files"] > 0
    lose_store(world)
    rebuilt(world)
    go_on(world)
    check(world)
