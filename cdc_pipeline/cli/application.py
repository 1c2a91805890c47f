"""All commands of `cdc` in one typer application, and the one place where an error becomes an exit code."""

import logging
import sys
import traceback
from importlib.metadata import entry_points
from types import TracebackType

import structlog
import typer
from structlog.typing import EventDict

from cdc_pipeline.cli import check_store, demo_command, pipeline_commands, quarantine, read_commands, stack_verbs
from cdc_pipeline.errors import CdcError, redacted

COMMAND_GROUP = "cdc_pipeline.commands"
INTERRUPTED = 130


def application() -> typer.Typer:
    """Other packages of this project add their verbs by an entry point of the group COMMAND_GROUP."""
    app = typer.Typer(
        name="cdc",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        help="Keeps tables of an operational database in a data lake. Exit codes: 0 ok, 1 error, 2 usage,"
        " 3 check failed, 4 busy.",
    )
    for module in (stack_verbs, demo_command, pipeline_commands, read_commands, quarantine, check_store):
        module.add_to(app)
    for entry in sorted(entry_points(group=COMMAND_GROUP), key=lambda found: found.name):
        entry.load()(app)
    return app


def _without_secrets(_logger: object, _method: str, event: EventDict) -> EventDict:
    return {name: redacted(value) if isinstance(value, str) else value for name, value in event.items()}


def _traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Of an error that nobody foresaw; it may show what a server or a library said."""
    sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))


def main() -> None:
    sys.excepthook = _traceback
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
    try:
        application()()
    except CdcError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print(redacted(f"error: {error.strerror or error}{where}"), file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
