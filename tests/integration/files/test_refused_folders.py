"""A folder that cannot be read is refused in one line that says what was found and what mends it; nothing is kept."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine, query
from tests.support.command_server import CommandServer

ERROR = 1
TYPED = {"name": "shop.public.orders", "columns": {"id": "bigint"}, "id": ["id"]}
SOURCE = {"db": "shop", "schema": "public", "table": "orders", "lsn": 1}
CREATE = json.dumps({"op": "c", "before": None, "after": {"id": 1}, "source": SOURCE})


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (None, ("cannot read the folder", "events", "correct source.path in pipeline.yml, or create it")),
        ("east/a.jsonl", ("east is no stream partition", "folders that are named 0, 1, 2")),
        ("a.jsonl", ("a.jsonl is no stream partition", "move it to")),
    ],
    ids=["no folder", "a folder without a number", "a file beside the folders"],
)
def test_it_is_refused_in_one_line(
    file: str | None,
    words: tuple[str, ...],
    tmp_path: Path,
    database: str,
    command_server: CommandServer,
) -> None:
    cdc = CommandLine(folder=tmp_path, source_url="nowhere/shop", store_url=database, server=command_server)
    cdc.write_settings(source={"kind": "debezium_files", "path": "events"}, tables=[TYPED])
    if file is not None:
        path = tmp_path / "events" / file
        path.parent.mkdir(parents=True)
        path.write_text(f"{CREATE}\n", encoding="utf-8")
    ended = cdc.run("setup-source")
    assert (ended.exit_code, ended.output) == (ERROR, "")
    assert [word for word in words if word not in ended.error] == []
    assert query(database, "SELECT count(*) FROM cdc.slice") == [(0,)]
