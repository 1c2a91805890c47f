"""What may happen to the servers and processes of a bank."""

import signal
from contextlib import suppress
from dataclasses import replace
from random import Random

import psutil
import psycopg2

from cdc_pipeline.launcher.supervisor import launcher, read_plan
from tests.chaos.bank import CONSUMER, LEASE_SECONDS, SOURCE, SPARK, STORE, WORKERS, Bank, NobodyThere
from tests.chaos.fire import Kind, Lasting, Strike
from tests.support.command_line import query

BACKENDS = """
SELECT pid FROM pg_stat_activity
WHERE backend_type IN ('client backend', 'walsender') AND application_name <> 'pgbench' AND pid <> pg_backend_pid()
ORDER BY backend_start, pid
"""
RIVAL = "rival-consumer"
RIVAL_SECONDS = 2, 12
TIMEOUT_SECONDS = 20
KILL, AT_ONCE, FAST = "kill -9", "immediate shutdown", "fast shutdown"
PAUSE, IN_CLAIM = "paused past its lease", "kill -9 during a claim"


def signalled(name: str, number: signal.Signals = signal.SIGKILL) -> Strike:
    def strike(bank: Bank, _: Random) -> None:
        bank.process(name).send_signal(number)

    return strike


def killed_in_claim(name: str) -> Strike:
    def strike(bank: Bank, _: Random) -> None:
        if not bank.claim_owners():
            raise NobodyThere
        bank.process(name).kill()

    return strike


def paused(name: str, shortest: float, longest: float) -> Strike:
    def strike(bank: Bank, chance: Random) -> Lasting:
        return pause(bank.process(name), chance.uniform(shortest, longest))

    return strike


def pause(process: psutil.Process, seconds: float) -> Lasting:
    def resume() -> None:
        with suppress(psutil.NoSuchProcess):
            process.resume()

    process.suspend()
    return Lasting(seconds=seconds, end=resume)


def backend_ended(server: str) -> Strike:
    """One of ours, whatever it is doing: a query, a walsender's stream, nothing."""

    def strike(bank: Bank, chance: Random) -> None:
        url = bank.source_url if server == SOURCE else bank.store_url
        try:
            ours = [int(pid) for (pid,) in query(url, BACKENDS)]
            if not ours:
                raise NobodyThere(server)
            query(url, f"SELECT pg_terminate_backend({chance.choice(ours)})")
        except psycopg2.OperationalError as away:
            raise NobodyThere(server) from away

    return strike


def rival_consumer(bank: Bank, chance: Random) -> Lasting:
    """Takes the stream from the one that reads it, which nobody tells; ended as `cdc down` would end it."""
    bank.process(CONSUMER)
    described = next(process for process in read_plan(bank.installation.plan) if process.name == CONSUMER)
    rival = launcher(bank.installation, bank.installation.identity)(replace(described, name=RIVAL))
    said = len(bank.log(RIVAL))

    def leave() -> None:
        rival.terminate()
        rival.wait(TIMEOUT_SECONDS)

    def has_hit() -> bool:
        return rival.poll() is not None or len(bank.log(RIVAL)) > said

    return Lasting(seconds=chance.uniform(*RIVAL_SECONDS), end=leave, has_hit=has_hit)


PAST_LEASE = LEASE_SECONDS + 1, LEASE_SECONDS + 6
SERVERS = tuple(
    Kind(site=site, fault=fault, share=1, strike=signalled(site, number))
    for site in (SOURCE, STORE)
    for fault, number in ((KILL, signal.SIGKILL), (AT_ONCE, signal.SIGQUIT), (FAST, signal.SIGINT))
)
BESIDE_WORKERS = (
    Kind(site=SPARK, fault=IN_CLAIM, share=2, strike=killed_in_claim(SPARK)),
    Kind(site=CONSUMER, fault=KILL, share=4, strike=signalled(CONSUMER)),
)
OWN_WORKERS = tuple(
    Kind(site=worker, fault=fault, share=2, strike=strike)
    for worker in WORKERS
    for fault, strike in ((KILL, signalled(worker)), (PAUSE, paused(worker, *PAST_LEASE)))
)
TERMINATED = tuple(
    Kind(site=site, fault="a backend terminated", share=3, strike=backend_ended(site)) for site in (SOURCE, STORE)
)
BESIDE_CONSUMER = (
    Kind(site=CONSUMER, fault="paused", share=2, strike=paused(CONSUMER, 4, 16)),
    Kind(site=CONSUMER, fault="a rival beside it", share=2, strike=rival_consumer),
)
