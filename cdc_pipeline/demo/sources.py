"""The demo's sources, one entry each: how its servers start, who writes to them, and how lake and source compare."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from urllib.parse import urlsplit

from cdc_pipeline.demo.dms_source import begin_files, begin_kinesis
from cdc_pipeline.demo.dms_targets import FULL_LOAD
from cdc_pipeline.demo.kafka_source import begin_kafka
from cdc_pipeline.demo.mariadb import MARIADB_SHOP, seed_mariadb, start_mariadb
from cdc_pipeline.demo.seed import seed
from cdc_pipeline.demo.shop_behind import verify_at_rest
from cdc_pipeline.demo.workload import POSTGRES_SHOP, Shop
from cdc_pipeline.launcher.parts import running
from cdc_pipeline.operations.verification import Verified
from cdc_pipeline.record import TableName
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.ports import free_port
from cdc_pipeline.settings.installation.state import home_of, open_installation
from cdc_pipeline.wiring import Pipeline

Begin = Callable[[Settings, Path], str]
Verify = Callable[[Pipeline, Sequence[TableName]], tuple[Verified, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSource:
    """One kind of source, by which `make demo SOURCE=…` runs the same script.

    `title`: what its first phase shows. `template`: the demo's pipeline.yml, in which `$port` is replaced by a free
    port. `begin`: starts the source's servers with `servers.ensure_server`, fills the shop, and returns the URL that
    the shop's sessions write to, or "" for the embedded server, whose URL is known when the stack is up; it gets the
    settings and the path of pipeline.yml. `verify`: compares every row of lake and source after the writers have ended.
    `exported`: exported files of each table from which the lake begins, with {schema} and {table}, relative to
    pipeline.yml; "" if there are none.

    Without exported files, the script takes a snapshot only if the source can copy tables. Programs and jars are
    fetched by the set-up: add what the source needs to `DEMO_NEEDS_…` in the Makefile.
    """

    title: str
    template: str
    begin: Begin
    shop: Shop
    verify: Verify
    exported: str = ""

    def prepare(self, folder: Path) -> Path:
        """Returns the path of the demo's pipeline.yml, which is made from the template if it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "pipeline.yml"
        if not config.exists():
            text = (files("cdc_pipeline.demo") / self.template).read_text(encoding="utf-8")
            config.write_text(Template(text).substitute(port=free_port()), encoding="utf-8")
        return config


def _begin_postgres(settings: Settings, config: Path) -> str:
    home = home_of(settings, os.environ)
    with running(settings, config=config, home=home, parts=frozenset({"postgres"})) as endpoints:
        seed(endpoints.source_url)
    return ""


def _begin_mysql(settings: Settings, config: Path) -> str:
    installation = open_installation(home_of(settings, os.environ))
    url = start_mariadb(installation, config.parent / "mariadb", urlsplit(settings.source.url).port or 0)
    seed_mariadb(url)
    return url


def _at_one_position(pipeline: Pipeline, tables: Sequence[TableName]) -> tuple[Verified, ...]:
    return pipeline.verification().verify(tables)


POSTGRES_DEMO = "postgres"
DEMO_SOURCES: Mapping[str, DemoSource] = {
    POSTGRES_DEMO: DemoSource(
        title="source: four shop tables and pgbench",
        template="pipeline.yml",
        begin=_begin_postgres,
        shop=POSTGRES_SHOP,
        verify=_at_one_position,
    ),
    "mysql": DemoSource(
        title="source: MariaDB with five shop tables",
        template="pipeline.mysql.yml",
        begin=_begin_mysql,
        shop=MARIADB_SHOP,
        verify=_at_one_position,
    ),
    "kafka": DemoSource(
        title="source: MariaDB, Debezium in Kafka Connect, a Kafka broker",
        template="pipeline.kafka.yml",
        begin=begin_kafka,
        shop=MARIADB_SHOP,
        verify=verify_at_rest,
    ),
    "files": DemoSource(
        title="source: MariaDB, and a task that writes files as AWS DMS does",
        template="pipeline.files.yml",
        begin=begin_files,
        shop=MARIADB_SHOP,
        verify=verify_at_rest,
        exported=f"files/{{schema}}/{{table}}/{FULL_LOAD}*",
    ),
    "kinesis": DemoSource(
        title="source: MariaDB, a task that writes records as AWS DMS does, a Kinesis server",
        template="pipeline.kinesis.yml",
        begin=begin_kinesis,
        shop=MARIADB_SHOP,
        verify=verify_at_rest,
    ),
}
"""Value of SOURCE -> how that demo differs from the others."""
