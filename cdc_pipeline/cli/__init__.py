"""The command `cdc`: the same verbs as the DAGs, for people without the UI."""

from cdc_pipeline.cli.application import main

__all__ = ["main"]
