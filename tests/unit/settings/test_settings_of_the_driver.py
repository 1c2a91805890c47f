"""pipeline.yml of a driver with a cluster: no secret, no open network, nothing that the guarantees rest on."""

import pytest

from tests.support.settings_texts import changed, parsed, refusal


def driver(text: str) -> str:
    return changed("lake: lake", f"lake: lake\ndriver: {{{text}}}")


def test_a_driver_works_alone_until_a_master_is_named() -> None:
    assert not parsed().driver.on_a_cluster
    assert parsed(driver("master: 'spark://127.0.0.1:7077'")).driver.on_a_cluster


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("master: yarn", "driver.master: 'yarn' is not a master: write local[*], local[4] or spark://"),
        (
            "spark: {executor.memory: 1g}",
            "'executor.memory' is not a setting of Spark: their names begin with 'spark.'",
        ),
        ("spark: {spark.sql.session.timeZone: CET}", "spark.sql.session.timeZone is set by the pipeline"),
        ("spark: {spark.connect.grpc.binding.address: 0.0.0.0}", "is set by the pipeline, and its guarantees need"),
        ("spark: {spark.authenticate.secret: HIDDEN}", "write it into spark-defaults.conf"),
        ("master: 'spark://10.0.0.1:7077'", 'write spark.network.crypto.enabled: "true" under driver.spark'),
        ("master: 'spark://127.0.0.1:7077,node:7077'", "is on another machine"),
    ],
)
def test_what_would_leak_or_weaken_a_guarantee_is_refused(text: str, words: str) -> None:
    message = refusal(driver(text))
    assert words in message
    assert "HIDDEN" not in message


@pytest.mark.parametrize("encrypted", ["true", "false"])
def test_a_master_on_another_machine_is_used_once_it_is_said_whether_its_network_is_trusted(encrypted: str) -> None:
    written = f"master: 'spark://node:7077', spark: {{spark.network.crypto.enabled: '{encrypted}'}}"
    assert parsed(driver(written)).driver.master == "spark://node:7077"
