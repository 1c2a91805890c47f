"""What every command needs: the settings that were asked for, where results go, and a pipeline when it works on one."""

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from cdc_pipeline.errors import redacted
from cdc_pipeline.steps import OnStep, no_step

if TYPE_CHECKING:
    from rich.console import Console
    from structlog.typing import EventDict

    from cdc_pipeline.settings import Settings
    from cdc_pipeline.wiring import Pipeline

_WIDTH_OF_A_FILE = 200
CHECK_FAILED = 3
"""Exit code of a command that ended and found rows that differ, or that the lake cannot hold."""
POSTGRES_ONLY = frozenset({"postgres"})
POSTGRES_AND_SPARK = frozenset({"postgres", "spark-connect"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One call of `cdc`. Results go to stdout, as tables or with `--json` as JSON; everything else to stderr."""

    config: Path
    as_json: bool

    @property
    def settings(self) -> "Settings":
        from cdc_pipeline.settings.file import load_settings

        return load_settings(self.config)

    @property
    def home(self) -> Path:
        from cdc_pipeline.installation.state import home_of

        return home_of(self.settings, os.environ)

    @property
    def console(self) -> "Console":
        from rich.console import Console

        return Console(stderr=True)

    @contextmanager
    def pipeline(self, parts: frozenset[str], settings: "Settings | None" = None) -> "Iterator[Pipeline]":
        """As `opened_pipeline`, and SIGTERM ends the block within five seconds, whatever it waits for."""
        from cdc_pipeline.cli.ending import left_in_time

        with left_in_time(), self.opened_pipeline(parts, settings) as pipeline:
            yield pipeline

    @contextmanager
    def opened_pipeline(
        self, parts: frozenset[str], settings: "Settings | None" = None, *, on_step: OnStep = no_step
    ) -> "Iterator[Pipeline]":
        """An open pipeline, of these settings or those of the file.

        Embedded servers among `parts` are started if they do not run, and ended by the last command that uses them.
        """
        from cdc_pipeline.installation.state import home_of
        from cdc_pipeline.launcher.parts import running
        from cdc_pipeline.metadata_store.upgrade import upgrade
        from cdc_pipeline.wiring import open_pipeline

        settings = settings or self.settings
        home = home_of(settings, os.environ)
        with running(settings, config=self.config, home=home, parts=parts) as endpoints:
            upgrade(endpoints.metadata_store_url)
            with open_pipeline(settings, endpoints, on_step=on_step) as pipeline:
                yield pipeline

    def matched_settings(self, *, keep: bool) -> "Settings":
        """With the tables that its patterns stand for on the source now; kept for all other commands, or not."""
        from cdc_pipeline.installation.state import home_of
        from cdc_pipeline.launcher.parts import running
        from cdc_pipeline.settings.file import keep_matching, load_settings
        from cdc_pipeline.source_setup.patterns import matching_tables
        from cdc_pipeline.wiring import source_of

        asking = load_settings(self.config, matching=())
        if not asking.include:
            return asking
        home = home_of(asking, os.environ)
        with running(asking, config=self.config, home=home, parts=POSTGRES_ONLY) as endpoints:
            names = matching_tables(source_of(asking, endpoints), asking)
        if keep:
            keep_matching(self.config, names)
        return load_settings(self.config, matching=names)

    def show(
        self, rows: Sequence[Mapping[str, Any]], *, title: str = "", columns: str | None = None, wide: bool = True
    ) -> None:
        """One object per row; columns are those of the first. As JSON every column is shown."""
        if self.as_json:
            print(json.dumps(list(rows), default=_plain, ensure_ascii=False))
            return
        from rich.console import Console

        from cdc_pipeline.cli.tables import NARROW, chosen_columns, table_of

        console = Console()
        if not console.is_terminal:
            console.width = _WIDTH_OF_A_FILE
        chosen = chosen_columns(rows, columns, wide=wide, width=console.width if console.is_terminal else NARROW)
        console.print(table_of(rows, chosen, title=title) if rows else "nothing")
        left_out = len(rows[0]) - len(chosen) if rows and columns is None else 0
        if left_out:
            self.console.print(
                f"{left_out} more columns are empty or do not fit: --wide, or --columns a,b", soft_wrap=True
            )


def context_of(config: Path | None, *, as_json: bool) -> Context:
    """What every command begins with. Root goes on as the owner of the installation from here on.

    Help needs none of it: what takes long to import is imported from here on.
    """
    from cdc_pipeline.installation.state import home_in
    from cdc_pipeline.launcher.rights import become_owner
    from cdc_pipeline.settings.file import settings_path

    log_to_stderr()
    path = settings_path(config, os.environ)
    become_owner(home_in(path.parent, os.environ))
    return Context(config=path, as_json=as_json)


def log_to_stderr() -> None:
    """One line per event, for people; secrets are hidden."""
    import structlog

    structlog.configure(
        processors=[
            _without_secrets,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _without_secrets(_logger: object, _method: str, event: "EventDict") -> "EventDict":
    return {name: redacted(value) if isinstance(value, str) else value for name, value in event.items()}


def _plain(value: object) -> object:
    match value:
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID() | Path():
            return str(value)
        case _:
            raise TypeError(type(value).__name__)
