"""A MariaDB replica is refused before anything is written on it, and so is a node of a cluster with half a log."""

from pathlib import Path
from urllib.parse import urlsplit

import pymysql
import pytest

from cdc_pipeline.errors import SourceError
from tests.support.eventually import eventually
from tests.support.mariadb import PASSWORD, USER, fresh_mysql_database, run_mysql, started_mariadb
from tests.support.mysql_source import MysqlShop, documented_reader

FROM = (
    "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = '{user}',"
    " MASTER_PASSWORD = '{password}', MASTER_USE_GTID = slave_pos"
)


def follow(replica: str, first: str) -> None:
    """Lets a new server replicate from here on what another one logs."""
    ((written,),) = run_mysql(first, "SELECT @@gtid_binlog_pos")
    where = FROM.format(port=urlsplit(first).port, user=USER, password=PASSWORD)
    run_mysql(replica, "RESET MASTER", f"SET GLOBAL gtid_slave_pos = '{written}'", where, "START SLAVE")


@pytest.mark.parametrize("is_logged", [False, True])
def test_a_replica_is_refused_and_goes_on_to_replicate(store_url: str, tmp_path: Path, *, is_logged: bool) -> None:
    """By a user with the documented rights, whom the primary created."""
    options = ["--server-id=2", f"--log-slave-updates={'ON' if is_logged else 'OFF'}"]
    with started_mariadb() as first, started_mariadb(*options) as replica:
        follow(replica, first)
        with fresh_mysql_database(first) as database:
            primary = MysqlShop(folder=tmp_path, url=first, database=database, store_url=store_url)
            with documented_reader(primary) as source:
                primary.run("CREATE TABLE orders (id INT PRIMARY KEY)")
                there = f"SELECT 1 FROM information_schema.tables WHERE table_schema = '{database}'"
                assert eventually(lambda: bool(run_mysql(replica, there)))
                source["url"] = source["url"].replace(str(urlsplit(first).port), str(urlsplit(replica).port))
                refusal = pytest.raises(SourceError, match=r"from another server \(gtid_slave_pos = 0-1-\d+\)")
                with primary.opened("orders", source=source) as pipeline, refusal:
                    pipeline.source_setup().set_up()
                primary.run("INSERT INTO orders VALUES (1)")
                assert eventually(lambda: bool(run_mysql(replica, f"SELECT 1 FROM {database}.orders")))


def test_a_replica_that_has_applied_nothing_yet_is_seen_by_a_user_with_the_right(
    store_url: str, tmp_path: Path
) -> None:
    with started_mariadb("--log-slave-updates=OFF") as url, fresh_mysql_database(url) as database:
        shop = MysqlShop(folder=tmp_path, url=url, database=database, store_url=store_url)
        shop.run("CREATE TABLE orders (id INT PRIMARY KEY)")
        with shop.opened("orders") as pipeline:
            assert pipeline.source_setup().set_up().tables == (shop.name("orders"),)
            shop.run(FROM.format(port=1, user=USER, password=PASSWORD))
            with pytest.raises(SourceError, match="SHOW ALL SLAVES STATUS"):
                pipeline.source_setup().set_up()


def test_a_primary_that_could_replicate_from_another_is_read(store_url: str, tmp_path: Path) -> None:
    """As the active one of a pair, or one that was promoted and keeps its settings."""
    with started_mariadb("--log-slave-updates=ON") as url, fresh_mysql_database(url) as database:
        shop = MysqlShop(folder=tmp_path, url=url, database=database, store_url=store_url)
        shop.run(FROM.format(port=1, user=USER, password=PASSWORD))
        shop.run("CREATE TABLE orders (id INT PRIMARY KEY)")
        with shop.opened("orders") as pipeline:
            assert pipeline.source_setup().set_up().tables == (shop.name("orders"),)


def test_a_server_that_once_replicated_is_read_once_the_user_may_see_that_it_no_longer_does(
    store_url: str, tmp_path: Path
) -> None:
    """Its gtid_slave_pos stays, and in strict mode the server refuses to empty it."""
    with started_mariadb("--log-slave-updates=OFF") as url, fresh_mysql_database(url) as database:
        shop = MysqlShop(folder=tmp_path, url=url, database=database, store_url=store_url)
        shop.run("CREATE TABLE orders (id INT PRIMARY KEY)")
        ((written,),) = shop.run("SELECT @@gtid_binlog_pos")
        shop.run(f"SET GLOBAL gtid_slave_pos = '{written},7-99-5'", "RESET SLAVE ALL")
        with documented_reader(shop) as source, shop.opened("orders", source=source) as pipeline:
            with pytest.raises(SourceError, match=r"gtid_slave_pos = .*7-99-5\); expected the primary") as refused:
                pipeline.source_setup().set_up()
            assert "with gtid_strict_mode = OFF meanwhile" in (refused.value.remedy or "")
            shop.run(f"GRANT SLAVE MONITOR ON *.* TO {database.replace('shop', 'reader')}@'127.0.0.1'")
            assert pipeline.source_setup().set_up().tables == (shop.name("orders"),)
        emptying, strict = "SET GLOBAL gtid_slave_pos = ''", "SET GLOBAL gtid_strict_mode = {}"
        with pytest.raises(pymysql.err.MySQLError):
            shop.run(emptying)
        shop.run(strict.format("OFF"), emptying, strict.format("ON"))
        assert shop.run("SELECT @@gtid_slave_pos") == [("",)]


def test_a_node_of_a_cluster_is_read_only_if_its_log_has_what_it_replicates(store_url: str, tmp_path: Path) -> None:
    with started_mariadb("--log-slave-updates=OFF", "--wsrep-on=ON") as url, fresh_mysql_database(url) as database:
        shop = MysqlShop(folder=tmp_path, url=url, database=database, store_url=store_url)
        shop.run("CREATE TABLE orders (id INT PRIMARY KEY)")
        with shop.opened("orders") as pipeline, pytest.raises(SourceError, match="wsrep_on = ON"):
            pipeline.source_setup().set_up()


def test_a_server_that_takes_no_writes_is_refused_by_name(store_url: str, tmp_path: Path) -> None:
    with started_mariadb("--read-only") as url, fresh_mysql_database(url) as database:
        shop = MysqlShop(folder=tmp_path, url=url, database=database, store_url=store_url)
        shop.run("CREATE TABLE orders (id INT PRIMARY KEY)")
        refusal = pytest.raises(SourceError, match=r"name the one that does in source\.url")
        with documented_reader(shop) as source, shop.opened("orders", source=source) as pipeline, refusal:
            pipeline.source_setup().set_up()
