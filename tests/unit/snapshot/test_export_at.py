"""What `--from` names."""

from pathlib import Path

import pytest

from cdc_pipeline.errors import UsageError
from snapshot.wiring import export_at


@pytest.mark.parametrize("place", ["", " ", "file://"])
def test_what_names_no_place_is_refused(place: str) -> None:
    with pytest.raises(UsageError, match="names no place; name the folder or file"):
        export_at(place, "start")


def test_a_url_of_a_folder_is_that_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "1%20.csv").write_text("id\n")
    assert export_at(folder.as_uri(), "start") == export_at(str(folder), "start")
    assert export_at(f"{folder.as_uri()}/*.csv", "start") == export_at(f"{folder}/*.csv", "start")
    file = folder / "1%20.csv"
    assert export_at(file.as_uri(), "start") == export_at(str(file), "start")
    assert export_at(str(file), "start").only == "1%20.csv"
