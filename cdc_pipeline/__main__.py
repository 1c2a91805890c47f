"""`python -m cdc_pipeline` is `cdc`."""

from cdc_pipeline.cli import main

main()
