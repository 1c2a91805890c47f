"""The four areas of the bucket, and the keys in them: built and parsed.

    cdc-event/<db>/<schema>/<table>/<stream_partition>/<slice file name>
    cdc-event/<db>/<schema>/<table>/pipeline.json
    cdc-event/stream=<name>/<chain position>.json
    cdc-event/stream=<name>/base/<chain position>.json
    db-snapshot/<db>/<schema>/<table>/<snapshot_id>/<snapshot data file>
    staging-area/<db>/<schema>/<table>/<snapshot_id>/<k>=<v or its hash>/<staging data file>
    staging-area/<db>/<schema>/<table>/<time>-verify-<id>/source.parquet
    staging-area/.warm-up/<time>-<id>/<objects of a scratch table>
    datalake/<db>/<schema>/<table>/

Each component comes from data. It is encoded reversibly to [A-Za-z0-9_.-] and !XX. It is refused if it is empty, `.`,
`..` or longer than 200 bytes when encoded. Keys never begin or end with a slash. An encoded name contains no `=`, so no
database shares a folder with a stream.
"""

from pathlib import PurePosixPath
from urllib.parse import quote, unquote

from cdc_pipeline.errors import UsageError
from cdc_pipeline.record import TableName

CDC_EVENT = "cdc-event"
DB_SNAPSHOT = "db-snapshot"
STAGING_AREA = "staging-area"
DATALAKE = "datalake"
WARM_UPS = f"{STAGING_AREA}/.warm-up"
MAX_COMPONENT_BYTES = 200
_ESCAPE = "!"
_REPAIR = "repair-"


def encode_component(component: str) -> str:
    """Encodes one path component to [A-Za-z0-9_.-] and !XX (UTF-8 bytes). Raises UsageError for a refused one."""
    # Not %XX: readers of Delta tables decode a path once more than Spark does, and find no folder with a percent sign.
    encoded = quote(component, safe="").replace("~", "%7E").replace("%", _ESCAPE)
    if component in ("", ".", "..") or len(encoded) > MAX_COMPONENT_BYTES:
        shown = encoded[:120]
        raise UsageError(
            f"the name {shown!r} cannot be a folder in the object store",
            expected=f"a non-empty name other than '.' and '..' of at most {MAX_COMPONENT_BYTES} bytes when encoded",
            remedy="rename it, or leave the table out of pipeline.yml",
        )
    return encoded


def decode_component(encoded: str) -> str:
    return unquote(encoded.replace(_ESCAPE, "%"), errors="strict")


def table_prefix(area: str, table: TableName) -> str:
    return "/".join((area, *map(encode_component, (table.database, table.schema, table.table))))


def slice_key(table: TableName, stream_partition: int, file_name: str) -> str:
    return f"{table_prefix(CDC_EVENT, table)}/{stream_partition}/{file_name}"


def repair_folder(boundary_id: int) -> str:
    """Returns the folder that holds the late slice of a repair within its stream partition."""
    return f"{_REPAIR}{boundary_id}"


def is_of_repair(slice_path: str) -> bool:
    """Returns whether the slice is the late slice of a repair."""
    return PurePosixPath(slice_path).parent.name.startswith(_REPAIR)


def owner_key(table: TableName) -> str:
    """Key of the object that names the pipeline to which the lake's table belongs."""
    return f"{table_prefix(CDC_EVENT, table)}/pipeline.json"


def stream_prefix(stream: str) -> str:
    """Prefix of the stream's cut files."""
    return f"{CDC_EVENT}/stream={encode_component(stream)}"


def cut_key(stream: str, chain_position: str) -> str:
    """Key of the cut file that decides the cut which begins at `chain_position`."""
    return f"{stream_prefix(stream)}/{encode_component(chain_position)}.json"


def base_prefix(stream: str) -> str:
    """Prefix of the objects that say where the chain of cut files begins after older cut files were deleted."""
    return f"{stream_prefix(stream)}/base"


def base_key(stream: str, chain_position: str) -> str:
    """Key of the base of a chain whose first cut file is the one at `chain_position`."""
    return f"{base_prefix(stream)}/{encode_component(chain_position)}.json"


def chain_position_of_key(key: str) -> str:
    """Returns the chain position that the key of a cut file or of a base names."""
    return decode_component(key.rpartition("/")[2].removesuffix(".json"))


def snapshot_prefix(table: TableName, snapshot_id: str) -> str:
    return f"{table_prefix(DB_SNAPSHOT, table)}/{encode_component(snapshot_id)}"


def quarantined_rows_key(table: TableName, snapshot_id: str) -> str:
    """Key of the rows that a published snapshot quarantined."""
    return f"{snapshot_prefix(table, snapshot_id)}/kept.json"


def staging_prefix(table: TableName, snapshot_id: str) -> str:
    return f"{table_prefix(STAGING_AREA, table)}/{encode_component(snapshot_id)}"


def lake_key(table: TableName) -> str:
    return table_prefix(DATALAKE, table)
