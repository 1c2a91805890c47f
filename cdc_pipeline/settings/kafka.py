"""Settings of a Kafka cluster whose topics carry Debezium's events."""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.record import TableName
from cdc_pipeline.settings.templates import PLACEHOLDER, filled
from cdc_pipeline.settings.work import SourceWithoutUrl

_IS_PATTERN = "^"


class KafkaSource(SourceWithoutUrl):
    """Topics of a Kafka cluster with Debezium's events as JSON.

    Give secrets by environment variables (`CDC_SOURCE__PASSWORD`, `CDC_SOURCE__KEY_PASSWORD`) or by a file.
    """

    unfit_table_settings: ClassVar[Mapping[str, str]] = {
        "as_text": "Debezium's events do not contain the source's text, so leave it out"
    }
    kind: Literal["kafka"] = Field(description="Debezium's events from Kafka")
    servers: str = Field(min_length=1, description="host:port of some brokers, separated by commas")
    topic: str = Field(
        min_length=1,
        description="topic of each table, with {database}, {schema} and {table} in it; "
        "one that begins with ^ is a regular expression",
    )
    transactions: str | None = Field(
        default=None,
        min_length=1,
        description="Debezium's transaction topic; then no boundary has a part of a transaction, and one consumer "
        "reads all partitions. Without it, transactions are whole in each partition alone",
    )
    begin: Literal["first", "kept"] = Field(
        default="first",
        description="where a topic is read from: its very first event, or the oldest one that the broker still keeps",
    )
    compacted: Literal["refuse", "upserts"] = Field(
        default="refuse",
        description="compacted topics: refuse them, or read each event as the newest row, and tombstones as deletes",
    )
    security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        default="plaintext", description="whether connections are encrypted (ssl) and a user is authenticated (sasl)"
    )
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="how the user is authenticated by SASL"
    )
    username: str | None = Field(default=None, description="the user, for sasl_plaintext and sasl_ssl")
    password: SecretStr | None = Field(default=None, description="better in CDC_SOURCE__PASSWORD")
    password_file: str | None = Field(default=None, description="a file with the password, relative to pipeline.yml")
    ca_file: str | None = Field(default=None, description="certificates that are trusted; default: the system's")
    certificate_file: str | None = Field(default=None, description="the client's own certificate")
    key_file: str | None = Field(default=None, description="the private key of the client's certificate")
    key_password: SecretStr | None = Field(default=None, description="better in CDC_SOURCE__KEY_PASSWORD")

    @property
    def has_more_topics(self) -> bool:
        """Whether a table may get more topics later, since `topic` is a regular expression."""
        return self.topic.startswith(_IS_PATTERN)

    def topic_pattern(self, table: TableName) -> re.Pattern[str]:
        """Returns the pattern that the whole name of each of the table's topics matches.

        Raises SettingsError for a regular expression that the table's name makes none, as in the name of a group.
        """
        if self.has_more_topics:
            try:
                return re.compile(filled(self.topic, table, re.escape))
            except re.error as error:
                raise SettingsError(
                    f"source.topic is no regular expression for the table {table}: {error}",
                    expected="{database}, {schema} and {table} where their texts may stand",
                    remedy="correct it in pipeline.yml",
                ) from error
        return re.compile(re.escape(filled(self.topic, table)))

    @field_validator("topic")
    @classmethod
    def _readable(cls, topic: str) -> str:
        try:
            re.compile(PLACEHOLDER.sub("x", topic) if topic.startswith(_IS_PATTERN) else "")
        except re.error as error:
            message = f"{topic!r} is no regular expression: {error}"
            raise ValueError(message) from error
        return topic

    @model_validator(mode="after")
    def _whole_login(self) -> "KafkaSource":
        secrets = (self.password, self.password_file)
        if self.security.startswith("sasl") and (self.username is None or not any(secrets)):
            message = f"security: {self.security} needs username, and password or password_file"
            raise ValueError(message)
        if not self.security.startswith("sasl") and (self.username is not None or any(secrets)):
            message = f"security: {self.security} sends no username and password; write sasl_ssl"
            raise ValueError(message)
        if all(secrets):
            message = "there are password and password_file: keep one of them"
            raise ValueError(message)
        if not self.security.endswith("ssl") and (self.ca_file or self.certificate_file or self.key_file):
            message = f"security: {self.security} uses no certificates; write ssl or sasl_ssl"
            raise ValueError(message)
        if (self.certificate_file is None) is not (self.key_file is None):
            message = "certificate_file and key_file belong together: give both or none"
            raise ValueError(message)
        return self
