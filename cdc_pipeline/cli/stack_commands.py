"""`up`, `down`, `migrate` and `warm-up`: the commands about the processes of an installation."""

from pathlib import Path
from typing import Annotated

import typer

from cdc_pipeline.cli.context import POSTGRES_AND_SPARK, POSTGRES_ONLY, context_of

Config = Annotated[Path | None, typer.Option("--config", help="pipeline.yml; default: CDC_CONFIG, else ./pipeline.yml")]


def add_to(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(down)
    app.command()(migrate)
    app.command(name="warm-up", hidden=True)(warm_up)


def up(config: Config = None) -> None:
    """Start all embedded servers, the consumer, a resident worker and Airflow.

    Returns when all of them are healthy. Embedded is what pipeline.yml gives no URL for.
    """
    from cdc_pipeline.launcher.display import up_command

    context = context_of(config, as_json=False)
    up_command(context.settings, config=context.config, home=context.home, console=context.console, say=context.say)


def down(config: Config = None) -> None:
    """End the processes of this installation and no others."""
    from cdc_pipeline.launcher.display import down_command

    context = context_of(config, as_json=False)
    down_command(home=context.home, console=context.console)


def migrate(config: Config = None) -> None:
    """Upgrade the tables of the metadata store to this version."""
    with context_of(config, as_json=False).pipeline(POSTGRES_ONLY):
        pass


def warm_up(config: Config = None) -> None:
    """Merge once in Spark, so that the first slice is fast.

    The driver loads and compiles its classes at the first MERGE.
    """
    with context_of(config, as_json=False).pipeline(POSTGRES_AND_SPARK) as pipeline:
        pipeline.warm_up().run()
