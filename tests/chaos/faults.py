"""What may happen to the servers and processes of a bank."""

import signal
from contextlib import suppress
from random import Random

import psutil

from tests.chaos.bank import CONSUMER, LEASE_SECONDS, SOURCE, SPARK, STORE, WORKERS, Bank, NobodyThere
from tests.chaos.fire import Kind, Lasting, Strike

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
