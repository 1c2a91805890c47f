"""PostgreSQL, Spark and Airflow as `cdc up` starts them, without the pipeline's own verbs."""

from pathlib import Path

import pytest

from cdc_pipeline.stack.control import down, process_states, start_and_wait
from cdc_pipeline.stack.health import is_healthy
from cdc_pipeline.stack.marked import SUPERVISOR, marked
from cdc_pipeline.stack.planning import plan
from cdc_pipeline.stack.state import PORT_NAMES, open_installation
from tests.support.eventually import eventually
from tests.support.shop_settings import shop_settings

OWN_VERBS = ("migrate", "consumer", "warm-up")
PORTS_THAT_SPARK_OPENS_FOR_ITSELF = 2


@pytest.mark.stack
@pytest.mark.xdist_group("stack")
def test_it_is_healthy_on_loopback_alone_and_goes_down_after_its_supervisor_was_killed(
    tmp_path: Path, home: Path
) -> None:
    installation, described = plan(
        shop_settings(tmp_path),
        config=tmp_path / "pipeline.yml",
        installation=open_installation(home),
        free=PORT_NAMES,
    )
    try:
        foreign = tuple(process for process in described if process.name not in OWN_VERBS)
        start_and_wait(installation, foreign, lambda _: None)
        assert {state.name for state in process_states(home)} == {process.name for process in foreign}
        everyone = marked(installation.identity)
        listening = [
            connection.laddr
            for process in everyone
            for connection in process.net_connections("inet")
            if connection.status == "LISTEN"
        ]
        assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
        assert len(listening) == len(PORT_NAMES) + PORTS_THAT_SPARK_OPENS_FOR_ITSELF
        next(process for process, name in everyone.items() if name == SUPERVISOR).kill()
        assert eventually(lambda: SUPERVISOR not in marked(installation.identity).values())
        assert is_healthy(next(process.health for process in foreign if process.name == "api-server") or "")
    finally:
        assert down(home) > 0
    assert marked(installation.identity) == {}
