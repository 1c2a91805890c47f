"""Set-up compiles the log stores, and nothing starts without them."""

import os
import zipfile
from pathlib import Path

import pytest

from cdc_pipeline.errors import SetupError
from cdc_pipeline.launcher.jars import DELTA, S3, jars_of, present_jars, read_lock
from cdc_pipeline.launcher.java import require_compiler
from cdc_pipeline.launcher.log_store import (
    IN_A_FOLDER,
    ON_S3,
    LogStore,
    compile_log_store,
    present_log_store,
)
from cdc_pipeline.launcher.project import JARS, JARS_LOCK
from cdc_pipeline.launcher.spark import spark_home


@pytest.mark.parametrize("log_store", [IN_A_FOLDER, ON_S3])
def test_set_up_compiled_the_log_store_of_this_source(log_store: LogStore) -> None:
    jar = present_log_store(log_store, JARS)
    assert jar == log_store.jar(JARS)
    with zipfile.ZipFile(jar) as archive:
        assert archive.namelist() == [f"cdc/{log_store.name}.class"]


@pytest.mark.parametrize(
    ("log_store", "remedy"), [(IN_A_FOLDER, "run `make setup`"), (ON_S3, "run `make setup JARS=s3`")]
)
def test_without_its_log_store_no_lake_is_written_whether_there_is_a_jdk_or_not(
    log_store: LogStore, remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(SetupError) as refused:
        present_log_store(log_store, tmp_path)
    assert str(refused.value).endswith(f"expected the log store of the lake; {remedy}")


def test_what_the_compiler_refuses_is_shown_and_leaves_no_jar(tmp_path: Path) -> None:
    compiler = require_compiler(os.environ)
    only_delta = present_jars(JARS, jars_of(read_lock(JARS_LOCK), [DELTA]))
    with pytest.raises(SetupError, match=r"refuses the log store:[\s\S]*s3a"):
        compile_log_store(ON_S3, tmp_path, only_delta, spark_home=spark_home(), compiler=compiler)
    assert list(tmp_path.iterdir()) == []
    everything = present_jars(JARS, jars_of(read_lock(JARS_LOCK), [DELTA, S3]))
    compiled = compile_log_store(ON_S3, tmp_path, everything, spark_home=spark_home(), compiler=compiler)
    assert compiled.parent == tmp_path
