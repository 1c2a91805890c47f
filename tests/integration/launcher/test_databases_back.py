"""The commands by which the databases beside an embedded source go back, as the page about upgrades has them."""

import subprocess
from pathlib import Path

from cdc_pipeline.launcher.account import ACCOUNT_NAME, server_account
from cdc_pipeline.launcher.parts import running
from cdc_pipeline.launcher.project import PROJECT
from tests.support.command_line import query
from tests.support.doc_pages import blocks
from tests.support.shop_settings import SHOP, shop_settings
from tests.support.streams import run_sql

POSTGRES = frozenset({"postgres"})
DUMP, RESTORE = blocks("docs/how-to/upgrade.md", "bash")
ROWS = "SELECT string_agg(id::text, ',' ORDER BY id) FROM t"


def bash(script: str, folder: Path) -> None:
    ended = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, "error" in ended.stderr) == (0, False), ended.stderr


def test_store_and_airflow_go_back_and_an_embedded_source_stays(home: Path) -> None:
    """Nothing else runs while they are restored, so `cdc down` has nothing to do here."""
    folder = home.parent
    settings, config = shop_settings(folder), folder / "pipeline.yml"
    config.write_text(SHOP, encoding="utf-8")
    (folder / ".venv").symlink_to(PROJECT / ".venv")
    dump, restore = (block.replace(".cdc/", f"{home.name}/") for block in (DUMP, RESTORE))
    restore = restore.replace("cdc down\n", "")
    with running(settings, config=config, home=home, parts=POSTGRES) as found:
        urls = (found.metadata_store_url, found.airflow_database_url, found.source_url)
        for url in urls:
            run_sql(url, "CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
        bash(f"set -e\n{dump}", folder)
        for url in urls:
            run_sql(url, "INSERT INTO t VALUES (2)")
    if server_account() is not None:
        restore = restore.replace("bash -c", f"runuser -u {ACCOUNT_NAME} -- bash -c")
        assert ACCOUNT_NAME in restore
    setting_up = dump.partition("$PROGRAMS/pg_dump")[0]
    bash(f"set -e\n{setting_up}{restore}", folder)
    with running(settings, config=config, home=home, parts=POSTGRES) as found:
        urls = (found.metadata_store_url, found.airflow_database_url, found.source_url)
        assert [query(url, ROWS) for url in urls] == [[("1",)], [("1",)], [("1,2",)]]
