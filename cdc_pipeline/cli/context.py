"""What every command needs: its settings, where its results go, and an open pipeline."""

import gc
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from cdc_pipeline.errors import CdcError, LeaseBusy, redacted
from cdc_pipeline.steps import OnStep, no_step

if TYPE_CHECKING:
    from rich.console import Console
    from structlog.typing import EventDict, Processor

    from cdc_pipeline.metadata_store.inspection.queries import Inspection
    from cdc_pipeline.settings import Settings
    from cdc_pipeline.settings.installation.endpoints import Endpoints
    from cdc_pipeline.wiring import Pipeline

CHECK_FAILED = 3
"""Exit code of a command that succeeded but found rows that differ, or rows that the lake cannot hold."""
POSTGRES_ONLY = frozenset({"postgres"})
POSTGRES_AND_SPARK = frozenset({"postgres", "spark-connect"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One call of `cdc`. Results go to stdout, as a table or, with `--json`, as JSON. All else goes to stderr."""

    config: Path
    as_json: bool

    @property
    def settings(self) -> "Settings":
        from cdc_pipeline.settings.file import load_settings

        return load_settings(self.config)

    def has(self, settings: "Settings") -> bool:
        """Whether pipeline.yml still says the same. A file that cannot be read changes nothing."""
        try:
            return self.settings == settings
        except (CdcError, OSError):
            return True

    @property
    def home(self) -> Path:
        """The installation's folder. A mistake in pipeline.yml is an error only while this folder does not exist."""
        from cdc_pipeline.settings.installation.state import home_in, home_of

        home = home_in(self.config.parent, os.environ)
        return home if home.exists() else home_of(self.settings, os.environ)

    @property
    def console(self) -> "Console":
        from rich.console import Console

        return Console(stderr=True)

    def say(self, text: str) -> None:
        """Prints a message on stderr. Brackets in it are text, such as those of a name."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def pipeline(
        self, parts: frozenset[str], settings: "Settings | None" = None, *, command: str | None = None
    ) -> "Iterator[Pipeline]":
        """As `opened_pipeline`, and SIGTERM ends the block within five seconds, whatever it waits for.

        A terminal shows progress. `command`: the name of a command that usually takes longer than two seconds, whose
        progress is also written where there is no terminal. Print results to stdout only after the block.
        """
        from cdc_pipeline.cli.ending import left_in_time

        with (
            left_in_time(),
            self.shown_steps(command, parts) as on_step,
            self.opened_pipeline(parts, settings, on_step=on_step) as pipeline,
        ):
            yield pipeline

    @contextmanager
    def shown_steps(self, command: str | None, parts: frozenset[str]) -> Iterator[OnStep]:
        """Yields an `on_step` that shows progress, as `pipeline` describes it."""
        from cdc_pipeline.cli.progress import shown_progress, steps_shown

        console = self.console
        if command is None and not console.is_terminal:
            yield no_step
            return
        with shown_progress(command or "cdc", console) as show:
            show(f"opening {', '.join(sorted(parts))}")
            yield steps_shown(show)

    @contextmanager
    def opened_pipeline(
        self, parts: frozenset[str], settings: "Settings | None" = None, *, on_step: OnStep = no_step
    ) -> "Iterator[Pipeline]":
        """Opens a pipeline with `settings`, or with those of the file. Starts servers as `_servers` does."""
        with without_collection():
            from cdc_pipeline.wiring import open_pipeline

        settings = settings or self.settings
        with self._servers(parts, settings) as endpoints, open_pipeline(settings, endpoints, on_step=on_step) as found:
            yield found

    @contextmanager
    def inspection(self) -> "Iterator[Inspection]":
        """Opens the inspection queries alone, which takes half the time of a whole pipeline."""
        from cdc_pipeline.cli.ending import read_in_time

        with without_collection():
            from cdc_pipeline.metadata_store.inspection.queries import open_inspection

        settings = self.settings
        with (
            read_in_time(),
            self.shown_steps(None, POSTGRES_ONLY) as on_step,
            self._servers(POSTGRES_ONLY, settings) as endpoints,
            open_inspection(endpoints.metadata_store_url, stream=settings.name, on_step=on_step) as inspection,
        ):
            yield inspection

    @contextmanager
    def _servers(self, parts: frozenset[str], settings: "Settings") -> "Iterator[Endpoints]":
        """Upgrades the metadata store and yields where the servers are.

        Embedded servers among `parts` are started if they do not run. The last command that uses them ends them.
        """
        with without_collection():
            from cdc_pipeline.launcher.parts import running
            from cdc_pipeline.metadata_store.upgrade import upgrade
            from cdc_pipeline.settings.installation.state import home_of

        home = home_of(settings, os.environ)
        with running(settings, config=self.config, home=home, parts=parts) as endpoints:
            upgrade(endpoints.metadata_store_url)
            yield endpoints

    def matched_settings(self, *, keep: bool) -> "Settings":
        """Returns the settings with the tables that match the patterns of `include` on the source now.

        `keep`: writes these tables beside pipeline.yml, where all other commands read them.
        """
        from cdc_pipeline.launcher.parts import running
        from cdc_pipeline.operations.source_setup.patterns import matching_tables
        from cdc_pipeline.settings.file import load_settings, store_matching
        from cdc_pipeline.settings.installation.state import home_of
        from cdc_pipeline.wiring import source_of

        listed = load_settings(self.config, matching=())
        if not listed.include:
            return listed
        home = home_of(listed, os.environ)
        with running(listed, config=self.config, home=home, parts=POSTGRES_ONLY) as endpoints:
            names = matching_tables(source_of(listed, endpoints), listed)
        if keep:
            store_matching(self.config, names)
        return load_settings(self.config, matching=names)

    def show(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        title: str = "",
        columns: str | None = None,
        wide: bool | None = None,
        nothing: str = "nothing",
        known: Sequence[str] = (),
    ) -> None:
        """Prints one record per row, with the columns of the first row; as JSON always with all columns.

        `columns` and `wide` are the options of a command that has them. Without `wide`, columns that are empty in every
        row are left out, and with `wide=False` also those that do not fit. `nothing`: what is printed without rows;
        `known`: the columns that there are then.
        """
        if self.as_json:
            print(json.dumps(list(rows), default=_plain, ensure_ascii=False))
            return
        from rich.console import Console

        from cdc_pipeline.cli.tables import NARROW, WIDE, chosen_columns, table_of

        console = Console()
        if not console.is_terminal:
            console.width = WIDE if wide or columns else NARROW
        chosen = chosen_columns(rows, columns, wide=wide, width=console.width, known=known)
        console.print(table_of(rows, chosen, title=title, width=console.width) if rows else nothing)
        left_out = len(rows[0]) - len(chosen) if rows and columns is None else 0
        if left_out and wide is False:
            self.say(f"{left_out} more columns are empty or do not fit: --wide, or --columns a,b")


def worst(codes: AbstractSet[int]) -> int:
    """Returns the exit code for several tables: one that failed counts more than one that another process works on."""
    return max(codes - {LeaseBusy.exit_code}, default=0) or max(codes, default=0)


def context_of(config: Path | None, *, as_json: bool) -> Context:
    """Every command begins with this call. When run by root, the process becomes the installation's owner here.

    Help does not need it, so modules that take long to import are imported from here on.
    """
    with without_collection():
        from cdc_pipeline.launcher.rights import become_owner
        from cdc_pipeline.settings.file import settings_path
        from cdc_pipeline.settings.installation.state import home_in

        log_to_stderr()
    path = settings_path(config, os.environ)
    become_owner(home_in(path.parent, os.environ))
    return Context(config=path, as_json=as_json)


@contextmanager
def without_collection() -> Iterator[None]:
    """Collects no garbage in the block, for blocks that import modules.

    Modules are made of many objects, and all of them stay. To look for garbage among them costs a tenth of an import.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def log_to_stderr(kept: "Processor | None" = None) -> None:
    """Writes one line per event, for people, with secrets hidden. `kept` gets each event, with the run that logs it.

    Tracebacks are plain text before secrets are looked for, and show no local variables: these may be rows.

    The stream is looked up at each event: while a live line is shown, it is the one that writes above that line.
    """
    import structlog

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            _without_secrets,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if kept is None else [kept]),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_names: structlog.PrintLogger(sys.stderr),
    )


def plain_line(event: "EventDict") -> str:
    """Returns an event as one line without colours; a traceback follows on lines of its own."""
    import structlog

    renderer = structlog.dev.ConsoleRenderer(
        colors=False, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )
    return str(renderer(None, "", event))


def _without_secrets(_logger: object, _method: str, event: "EventDict") -> "EventDict":
    return {name: redacted(value) if isinstance(value, str) else value for name, value in event.items()}


def _plain(value: object) -> object:
    match value:
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case UUID() | Path():
            return str(value)
        case _:
            raise TypeError(type(value).__name__)
