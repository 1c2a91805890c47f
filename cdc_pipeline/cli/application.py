"""All commands of `cdc` in one typer application. Here, and nowhere else, an error becomes an exit code."""

import sys
import traceback
from importlib.metadata import entry_points, version
from types import TracebackType
from typing import Annotated

import typer

from cdc_pipeline.cli import demo_command, pipeline_commands, quarantine, read_commands, stack_commands
from cdc_pipeline.cli.context import without_collection
from cdc_pipeline.errors import CdcError, redacted

COMMAND_GROUP = "cdc_pipeline.commands"
INTERRUPTED = 130


def application() -> typer.Typer:
    """Returns `cdc` with all its commands.

    Other packages of this project add theirs through an entry point of the group COMMAND_GROUP.
    """
    app = typer.Typer(
        name="cdc",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # importing rich takes longer than all the rest of `cdc --help`
        help="Keeps tables of an operational database in a data lake.\n\nExit codes: 0 success, 1 error, 2 usage or"
        " settings, 3 a check failed, 4 another process is at work, 130 Ctrl-C, 143 SIGTERM. cdc consume and cdc work"
        " end with 0 then.",
    )
    app.callback()(_options)
    for module in (stack_commands, demo_command, pipeline_commands, read_commands, quarantine):
        module.add_to(app)
    for entry in sorted(entry_points(group=COMMAND_GROUP), key=lambda found: found.name):
        entry.load()(app)
    return app


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"cdc-pipeline {version('cdc-pipeline')}")
        raise typer.Exit


def _options(
    is_wanted: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="show the version and exit")
    ] = False,
) -> None:
    """Options of `cdc` itself, before the name of a command."""


def _traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Writes the traceback of an unexpected error without secrets: its messages come from servers and libraries."""
    sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))


def main() -> None:
    sys.excepthook = _traceback
    try:
        with without_collection():
            app = application()
        app()
    except CdcError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print(redacted(f"error: {error.strerror or error}{where}"), file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
