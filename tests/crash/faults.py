"""What can become of a run at a site: its process is killed, or a call's answer is lost."""

from collections.abc import Callable, Iterator

import pytest
import structlog

from cdc_pipeline.errors import CdcError
from cdc_pipeline.steps import Moment
from cdc_pipeline.wiring import Pipeline
from tests.crash.failpoint import Crash, Failpoint, LostAnswer, Site
from tests.crash.steps import lost_answer
from tests.crash.world import World

log = structlog.get_logger()

UNKNOWN_HOLDERS = frozenset({"lease.acquire", "snapshot_task.claim"})
"""Steps that give a lease, which nobody has when the answer is lost."""
Verb = Callable[[Pipeline], object]


Fault = Callable[[World, Verb, Site], None]


def recorded(world: World, verb: Verb) -> list[Site]:
    """The steps of an undisturbed run."""
    failpoint = Failpoint()
    with world.process(failpoint) as pipeline:
        verb(pipeline)
    return failpoint.recorded


def killed(world: World, verb: Verb, site: Site) -> None:
    log.info("killed", site=str(site))
    with pytest.raises(Crash), world.process(Failpoint(site)) as pipeline:
        verb(pipeline)


def unanswered(world: World, verb: Verb, site: Site) -> None:
    """The process ends in order, with success or with an error that says that the same call may be repeated.

    It leaves nothing behind but what it never knew it had.
    """
    log.info("answer lost", site=str(site))
    lost = LostAnswer(site, error=lost_answer(site.name))
    ended = list[CdcError]()
    with world.process(lost) as pipeline:
        try:
            verb(pipeline)
        except CdcError as error:
            ended.append(error)
    assert lost.is_lost
    assert [error for error in ended if not error.retryable] == []
    if site.name not in UNKNOWN_HOLDERS:
        assert world.held_leases() == []


def first_and_last(sites: list[Site]) -> list[Site]:
    """Of a step that is taken often, two times: a file or a task in the middle is like its neighbours."""
    by_name: dict[str, list[Site]] = {}
    for site in sites:
        by_name.setdefault(site.name, []).append(site)
    kept = {site for found in by_name.values() for site in (found[0], found[-1])}
    return [site for site in sites if site in kept]


def few_faults(sites: list[Site]) -> Iterator[tuple[Fault, Site]]:
    """A death at the first time of every step, and a lost answer at the last."""
    first = {(site.name, site.moment): site for site in reversed(sites)}
    last = {site.name: site for site in sites if site.moment is Moment.AFTER}
    for site in sites:
        if first[site.name, site.moment] == site:
            yield killed, site
        if last.get(site.name) == site:
            yield unanswered, site


def all_faults(sites: list[Site]) -> Iterator[tuple[Fault, Site]]:
    """A death at the first time and at the last time of every step, and a lost answer at the last."""
    last = {site.name: site for site in sites if site.moment is Moment.AFTER}
    for site in first_and_last(sites):
        yield killed, site
        if last.get(site.name) == site:
            yield unanswered, site


Faults = Callable[[list[Site]], Iterator[tuple[Fault, Site]]]
each_fault = pytest.mark.parametrize("faults", [few_faults, pytest.param(all_faults, marks=pytest.mark.nightly)])
