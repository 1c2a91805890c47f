"""`up`, `down`, `migrate` and `warm-up`: the processes of an installation."""

from pathlib import Path
from typing import Annotated

import typer

from cdc_pipeline.cli.context import POSTGRES_AND_SPARK, POSTGRES_ONLY, context_of

Config = Annotated[Path | None, typer.Option("--config", help="pipeline.yml; default: CDC_CONFIG, else ./pipeline.yml")]


def add_to(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(down)
    app.command(hidden=True)(migrate)
    app.command(name="warm-up", hidden=True)(warm_up)


def up(config: Config = None) -> None:
    """Start everything that pipeline.yml calls embedded, the consumer and Airflow; return when all is healthy."""
    from cdc_pipeline.launcher.display import up_command

    context = context_of(config, as_json=False)
    up_command(context.settings, config=context.config, home=context.home, console=context.console)


def down(config: Config = None) -> None:
    """End exactly the processes of this installation."""
    from cdc_pipeline.launcher.display import down_command

    context = context_of(config, as_json=False)
    down_command(home=context.home, console=context.console)


def migrate(config: Config = None) -> None:
    """Bring the metadata store to this version."""
    with context_of(config, as_json=False).pipeline(POSTGRES_ONLY):
        pass


def warm_up(config: Config = None) -> None:
    """Let the Spark driver merge once, so that the first slice finds its classes loaded."""
    from cdc_pipeline.operations.warm_up import warm_up as warm_up_driver

    with context_of(config, as_json=False).pipeline(POSTGRES_AND_SPARK) as pipeline:
        warm_up_driver(pipeline)
