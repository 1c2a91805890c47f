"""The section of pipeline.yml about a MariaDB or MySQL source."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from cdc_pipeline.settings.work import SourceSettings, StreamPartitions


class MysqlSource(SourceSettings):
    """A MariaDB 10.5 or MySQL 8.0 server, or newer, with `binlog_row_metadata = FULL`, read by its binary log."""

    unfit_table_settings: ClassVar[Mapping[str, str]] = {
        "columns": "the server's catalogue has their types, so leave them out"
    }
    kind: Literal["mysql"] = Field(description="a MariaDB or MySQL server")
    url: str = Field(
        min_length=1,
        repr=False,
        description="mysql://user@host:port; the password also in a file or in CDC_SOURCE__URL",
    )
    password_file: str | None = Field(default=None, description="a file with the password of the user")
    tls: Literal["off", "require", "verify"] | None = Field(
        default=None, description="verify: check the server's certificate. Default: require, for another machine"
    )
    tls_ca: str | None = Field(default=None, description="a file with the certificates that `verify` trusts")
    marker_table: str = Field(
        default="cdc_pipeline.cdc_marker",
        pattern=r"^[A-Za-z0-9_]+\.[A-Za-z0-9_]+$",
        description="database.table on the source, through which marker messages are sent; set-up creates it",
    )
    server_id: int | None = Field(
        default=None, ge=1, lt=1 << 32, description="by which the source knows the consumer; default: from the name"
    )
    copy_address: str = Field(
        default="127.0.0.1",
        description="the address at which the process that holds a snapshot lets worker slots read it; by the default,"
        " only those on its own machine",
    )
    stream_partitions: StreamPartitions = 1
