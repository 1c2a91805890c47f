"""What a run of benchmarks works with: sizes, servers that are started at their first use, and the way to measure."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import yaml

from benchmarks.arms import Clockwork
from benchmarks.sizes import BUDGET_SECONDS, ROUNDS, Scale, Setting, sizes_of
from benchmarks.usage import Meter
from cdc_pipeline.launcher.postgres import PostgresServer
from cdc_pipeline.settings.work import DriverSettings
from tests.support.postgres import started_server
from tests.support.spark import started_spark

OURS = "this project"


@dataclass(kw_only=True, eq=False)
class Bench:
    """`overrides`: settings of further arms of this project, as `worker.upsert=merge`; each adds an arm.

    Leave `opened` at the end: it ends the servers. `given_spark`: a driver that runs already, or "".
    """

    scale: Scale
    opened: ExitStack
    seed: int = 1
    settings: Sequence[Setting] = ()
    overrides: Sequence[str] = ()
    given_spark: str = ""
    meter: Meter = field(default_factory=Meter)

    @property
    def clockwork(self) -> Clockwork:
        return Clockwork(
            rounds=ROUNDS[self.scale],
            budget_seconds=BUDGET_SECONDS[self.scale],
            meter=self.meter,
            most_warm_ups=0 if self.scale == "tiny" else 2,
        )

    def sizes(self, row: str) -> dict[str, int]:
        return sizes_of(row, self.scale, self.settings)

    def variants(self, *sections: str) -> dict[str, dict[str, Any]]:
        """Name of an arm of this project -> what it sets in pipeline.yml; only of these sections, or of all."""
        chosen = {f"{OURS}, {text}": sections_of(text) for text in self.overrides}
        return {OURS: {}} | {name: found for name, found in chosen.items() if not sections or {*found} & {*sections}}

    def folder(self, opened: ExitStack | None = None) -> Path:
        """An empty one, until `opened` is left; else until the run ends."""
        return Path((opened or self.opened).enter_context(tempfile.TemporaryDirectory(prefix="cdc-bench-")))

    @cached_property
    def postgres(self) -> PostgresServer:
        server = self.opened.enter_context(started_server(dict(os.environ)))
        lines = (server.folder / "data" / "postmaster.pid").read_text(encoding="ascii").splitlines()
        self.meter.servers["postgres"] = int(lines[0])
        return server

    @cached_property
    def spark_url(self) -> str:
        """A driver with the options of `cdc up`, or the given one; for tiny sizes, one that is sooner warm."""
        options = {} if self.scale == "tiny" else {"java_options": DriverSettings().java_options}
        url = self.given_spark or self.opened.enter_context(started_spark(self.folder(), **options))
        driver = _driver_at(url)
        if driver is not None:
            self.meter.servers["spark"] = driver
        return url


def sections_of(text: str) -> dict[str, Any]:
    """`worker.upsert=merge` -> {"worker": {"upsert": "merge"}}, the value as YAML. Raises ValueError otherwise."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        message = f"{text!r} sets nothing; expected SECTION.NAME=VALUE"
        raise ValueError(message)
    found: Any = yaml.safe_load(value)
    for name in reversed(path.split(".")):
        found = {name: found}
    return dict(found)


def _driver_at(url: str) -> int | None:
    """The process id of the driver that listens there; None if it is not on this machine."""
    port = f"binding.port={urlsplit(url.partition('/;')[0]).port}"
    for process in psutil.process_iter(["cmdline"]):
        if any(port in word for word in process.info["cmdline"] or ()):
            return int(process.pid)
    return None


def plus(values: Mapping[str, float | None]) -> dict[str, float]:
    """Those that were measured."""
    return {name: value for name, value in values.items() if value is not None}
