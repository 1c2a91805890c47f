"""The whole way from source to lake through an S3 server that fails again and again: nothing lost, nothing doubled."""

import os
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from random import Random
from threading import Event

import pytest
import structlog

from cdc_pipeline.settings import ObjectStoreSettings
from tests.chaos.bank import burning_bank
from tests.chaos.evidence import check_boundaries, check_registry, check_rows, wait_until_applied
from tests.chaos.faults import writers
from tests.chaos.report import Report
from tests.support.fault_plan import planned_faults
from tests.support.faulty_server import CONFLICT, PASSING, PRECONDITION, no_answer
from tests.support.s3 import BUCKET, REGION, started_moto

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("spark")]

log = structlog.get_logger()

SECONDS = float(os.environ.get("CDC_FIRE_SECONDS", "90"))
SHARE = 0.1
UNANSWERED = no_answer(5)
FAULTS = (*PASSING, *PASSING, CONFLICT, PRECONDITION, UNANSWERED)


def test_a_tenth_of_all_calls_fails_and_every_row_arrives_once(report: Report, chaos_seed: int) -> None:
    """What came out is read beside the proxy: the reader would hold up the threads of this process."""
    with started_moto() as moto, planned_faults(moto) as (url, plan):
        server = {"endpoint": url, "region": REGION, "path_style": True}
        calm = ObjectStoreSettings(endpoint=moto, region=REGION, path_style=True)
        with (
            report.red_unless_done("servers: S3", "a tenth of all calls fails"),
            burning_bank(slice_seconds=10, claim_slices=1000, lake=f"s3://{BUCKET}/bank", object_store=server) as bank,
        ):
            with writers(bank), plan.storm(Random(f"{chaos_seed} storm"), FAULTS, share=SHARE):
                Event().wait(SECONDS)
            began = time.monotonic()
            beside_proxy = replace(bank, settings=bank.settings.model_copy(update={"object_store": calm}))
            wait_until_applied(bank)
            took = timedelta(seconds=time.monotonic() - began)
            with beside_proxy.pipeline() as pipeline:
                rows = check_rows(bank, pipeline)
                check_registry(bank)
                boundaries = check_boundaries(pipeline)
    faults = Counter(fault for (_, fault), times in plan.made.items() for _ in range(times))
    words = f"equal, {sum(rows.values())} rows; {boundaries} boundaries in balance; {faults.total()} faults"
    report.record("servers: S3", "a tenth of all calls fails", words, took)
    log.info("the storm is over", faults=dict(faults), calls=dict(plan.calls), rows=rows, boundaries=boundaries)
