"""The location of a lake on S3: bucket, prefix and server; and how to connect to it."""

from dataclasses import dataclass, replace
from typing import Any

import boto3.session
import botocore.session
from botocore.config import Config
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.credentials import ReadOnlyCredentials

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.settings.lake_location import parse_endpoint

DEFAULT_REGION = "us-east-1"
CONNECT_SECONDS = 5
ANSWER_SECONDS = 30
CONNECTIONS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Location:
    """`prefix` has no slash at either end and may be empty. Without `endpoint` it is on AWS.

    `allow_http`: whether an endpoint on another machine that AWS's variables or profile name may be without TLS.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False
    allow_http: bool = False

    @property
    def path(self) -> str:
        return f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket


def session_of(location: S3Location) -> tuple[boto3.session.Session, S3Location]:
    """The session of AWS's client, and the location with the server that AWS's variables or profile name."""
    found = botocore.session.Session()
    session = boto3.session.Session(botocore_session=found, region_name=location.region)
    named = location.endpoint or _named_endpoint(found, allow_http=location.allow_http)
    return session, replace(location, endpoint=named)


def credentials_of(session: boto3.session.Session) -> ReadOnlyCredentials:
    """The current credentials, found as AWS's own tools find them: environment, profile, the machine's role."""
    found = session.get_credentials()
    if found is None:
        raise SettingsError(
            "there are no credentials for the lake on S3",
            expected="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile named AWS_PROFILE, or the machine's role",
            remedy="set them in the environment of every process of the pipeline; never write them into pipeline.yml",
        )
    return found.get_frozen_credentials()


def _named_endpoint(session: botocore.session.Session, *, allow_http: bool) -> str | None:
    """The server that AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or the profile names; Spark's client goes there too."""
    found = ConfiguredEndpointProvider(
        full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name="s3"
    ).provide()
    if found is not None and session.get_config_variable("ignore_configured_endpoint_urls"):
        raise SettingsError(
            "AWS's variables or profile name an endpoint of S3, and AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is true",
            expected="one or the other, because Spark's client cannot ignore the endpoint",
            remedy="unset AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL, or set object_store.endpoint in pipeline.yml",
        )
    try:
        return None if found is None else parse_endpoint(found, allow_http=allow_http)
    except ValueError as error:
        raise SettingsError(
            f"AWS's variables or profile name an endpoint of S3: {error}",
            expected="https, or this machine, unless object_store.allow_http allows http",
            remedy="correct AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or the profile, or set object_store in pipeline.yml",
        ) from error


def client_options(location: S3Location, session: boto3.session.Session) -> dict[str, Any]:
    """Payloads are signed, which every server checks. Each call is tried once, because `S3Calls` repeats it."""
    return {
        "endpoint_url": location.endpoint,
        "region_name": session.region_name or DEFAULT_REGION,
        "config": Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=ANSWER_SECONDS,
            max_pool_connections=CONNECTIONS,
            retries={"mode": "standard", "total_max_attempts": 1},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if location.path_style else "auto", "payload_signing_enabled": True},
        ),
    }
