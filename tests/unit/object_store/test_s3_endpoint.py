"""Which server is asked for an object, and by whom."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

import pytest

from cdc_pipeline.errors import ObjectMissing, SettingsError
from cdc_pipeline.object_store.s3 import S3ObjectStore
from cdc_pipeline.object_store.s3_location import S3Location
from tests.support.served import served

VARIABLES = ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"]
ON_AWS = S3Location(bucket="lake", region="eu-west-1", path_style=True)


class Empty(BaseHTTPRequestHandler):
    """Has no object."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815


@contextmanager
def started() -> Iterator[tuple[str, list[str]]]:
    """Endpoint of a server, and what it was asked for."""

    class Server(Empty):
        asked: ClassVar[list[str]] = []

    with served(Server) as endpoint:
        yield endpoint, Server.asked


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def read(endpoint: str | None) -> None:
    """Reads an object as the pipeline does, and as Parquet is read."""
    location = S3Location(bucket="lake", endpoint=endpoint, region="eu-west-1", path_style=True)
    objects = S3ObjectStore(location, timeout=timedelta(0))
    with pytest.raises(ObjectMissing):
        objects.get("one")
    filesystem, root = objects.filesystem()
    with pytest.raises(FileNotFoundError):
        filesystem.open_input_file(f"{root}/two")


@pytest.mark.parametrize("name", VARIABLES)
def test_parquet_is_read_from_the_server_that_a_variable_names(name: str) -> None:
    with started() as (endpoint, asked), variable(name, endpoint):
        read(None)
        assert asked == ["GET /lake/one", "HEAD /lake/two"]


def test_the_settings_count_before_a_variable() -> None:
    with started() as (endpoint, asked), started() as (other, others), variable(VARIABLES[0], other):
        read(endpoint)
        assert (len(asked), others) == (2, [])


def test_a_variable_that_only_a_part_of_the_pipeline_would_ignore_is_refused() -> None:
    with variable("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"):
        S3ObjectStore(ON_AWS)
        with variable(VARIABLES[0], "https://s3.example.com"):
            with pytest.raises(SettingsError, match=r"Spark's client cannot ignore the endpoint"):
                S3ObjectStore(ON_AWS)
            S3ObjectStore(replace(ON_AWS, endpoint="https://s3.example.com"))


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_names_no_other_machine_without_tls_unless_the_settings_allow_it(name: str) -> None:
    with variable(name, "http://s3.example.com:9000"):
        with pytest.raises(SettingsError, match=r"'http://s3\.example\.com:9000' would send data unencrypted"):
            S3ObjectStore(ON_AWS)
        assert S3ObjectStore(replace(ON_AWS, allow_http=True)).url == "s3://lake"
