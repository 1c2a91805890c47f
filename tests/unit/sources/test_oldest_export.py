"""When the oldest of the exported files was written."""

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from cdc_pipeline.object_store.local import LocalObjectStore
from cdc_pipeline.settings.change_files import CsvSettings
from cdc_pipeline.sources.files.exported_files import ExportedFiles
from cdc_pipeline.steps import no_step
from tests.unit.sources.test_change_folders import as_nobody


def test_a_named_file_needs_no_list_of_what_is_beside_it() -> None:
    """In a bucket that has millions of objects the list takes minutes."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        folder.chmod(0o755)
        (folder / "beside").mkdir(mode=0)
        (folder / "a.csv").write_text("id\n1\n")
        os.utime(folder / "a.csv", (1_750_000_000, 1_750_000_000))
        files = ExportedFiles(objects=LocalObjectStore(folder), csv=CsvSettings(), only="a.csv", on_step=no_step)
        with as_nobody():
            assert files.oldest() == datetime.fromtimestamp(1_750_000_000, UTC)
