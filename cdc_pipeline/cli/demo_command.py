"""`cdc demo`: everything at once on one machine, ending with a proof."""

from pathlib import Path
from typing import Annotated

import typer

from cdc_pipeline.cli.context import CHECK_FAILED, log_to_stderr
from cdc_pipeline.launcher.project import PROJECT

WIDTH_OF_A_FILE = 160
Folder = Annotated[
    Path | None, typer.Option("--folder", help="where the demo lives; default: .cdc/demo of the project")
]


def add_to(app: typer.Typer) -> None:
    app.command()(demo)


def demo(folder: Folder = None) -> None:
    """Start everything, run the main job on live data with one worker killed in the middle, compare every row."""
    from rich.console import Console

    from cdc_pipeline.demo.story import run_demo

    log_to_stderr()
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH_OF_A_FILE
    equal = run_demo((folder or PROJECT / ".cdc" / "demo").absolute(), console)
    raise typer.Exit(0 if equal else CHECK_FAILED)
