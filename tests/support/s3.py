"""Real S3 servers for tests, as processes of their own."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3.session

from cdc_pipeline.launcher.launch import start
from cdc_pipeline.launcher.project import PROJECT
from cdc_pipeline.object_store.s3 import S3ObjectStore
from cdc_pipeline.object_store.s3_location import S3Location, client_options
from cdc_pipeline.settings.installation.ports import free_port
from tests.support.eventually import await_listener

BUCKET = "cdc-test-lake"
REGION = "us-east-1"
ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""The credentials of these servers, and nothing of whoever runs the tests; tests/conftest.py sets them."""
OTHER_S3 = "CDC_S3"
"""The environment variable with the endpoint of another server than moto's, to run the same tests over it."""
LOOPBACK = "127.0.0.1"
TIMEOUT_SECONDS = 30


@contextmanager
def started_s3() -> Iterator[str]:
    """The same as `started_moto`, or the server that OTHER_S3 names, with BUCKET, which stays as it is."""
    endpoint = os.environ.get(OTHER_S3)
    if endpoint is None:
        with started_moto() as moto:
            yield moto
    else:
        make_bucket(endpoint)
        yield endpoint


@contextmanager
def started_moto() -> Iterator[str]:
    """`http://127.0.0.1:port` of a server with an empty BUCKET, which forgets everything when the block ends."""
    port = free_port()
    command = [sys.executable, "-m", "tests.support.moto_process", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    with tempfile.TemporaryFile() as output:
        process = start(command, environment=environment, folder=Path("/"), output=output, tied=True)
    try:
        await_listener(process, port, TIMEOUT_SECONDS)
        endpoint = f"http://{LOOPBACK}:{port}"
        make_bucket(endpoint)
        yield endpoint
    finally:
        process.terminate()
        process.wait(TIMEOUT_SECONDS)


def make_bucket(endpoint: str) -> None:
    location = s3_location(endpoint)
    session = boto3.session.Session()
    client = session.client("s3", **client_options(location, session))
    if BUCKET not in (bucket["Name"] for bucket in client.list_buckets()["Buckets"]):
        client.create_bucket(Bucket=BUCKET)


def s3_location(endpoint: str, prefix: str = "") -> S3Location:
    return S3Location(bucket=BUCKET, prefix=prefix, endpoint=endpoint, region=REGION, path_style=True)


def s3_objects(endpoint: str, prefix: str = "") -> S3ObjectStore:
    """An object store below `prefix` of BUCKET."""
    return S3ObjectStore(s3_location(endpoint, prefix), is_proven=True)
