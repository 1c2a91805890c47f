"""`cdc demo`: the whole pipeline on one machine, with a proof at the end."""

from pathlib import Path
from typing import Annotated

import typer

from cdc_pipeline.cli.context import CHECK_FAILED, log_to_stderr
from cdc_pipeline.launcher.project import PROJECT

Folder = Annotated[
    Path | None, typer.Option("--folder", help="folder of the demo's files; default: .cdc/demo in the project")
]
SourceName = Annotated[
    str,
    typer.Option("--source", help="what it reads: postgres, or another source, in a folder of its own", metavar="NAME"),
]


def add_to(app: typer.Typer) -> None:
    app.command()(demo)


def demo(folder: Folder = None, source: SourceName = "postgres") -> None:
    """Run the whole pipeline on live data and compare all rows.

    It starts all servers, takes a snapshot, applies slices while one worker is killed, runs a backfill, and ends with
    a comparison of every row of source and lake. The servers stay up. Exit code 3 when a table differs.
    """
    from rich.console import Console

    from cdc_pipeline.cli.tables import NARROW
    from cdc_pipeline.demo.sources import DEMO_SOURCES, POSTGRES_DEMO
    from cdc_pipeline.demo.story import run_demo
    from cdc_pipeline.errors import UsageError

    log_to_stderr()
    if source not in DEMO_SOURCES:
        raise UsageError(f"there is no demo of the source {source!r}", expected=" or ".join(DEMO_SOURCES))
    own_folder = "demo" if source == POSTGRES_DEMO else f"demo-{source}"
    console = Console()
    if not console.is_terminal:
        console.width = NARROW
    equal = run_demo((folder or PROJECT / ".cdc" / own_folder).absolute(), console, DEMO_SOURCES[source])
    raise typer.Exit(0 if equal else CHECK_FAILED)
