"""The command `cdc`: what the DAGs do, for people without the Airflow UI."""

from cdc_pipeline.cli.application import main

__all__ = ["main"]
