"""What becomes of a call to S3 for which the role's credentials are expired, or cannot be reached."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cdc_pipeline.errors import ObjectStoreAway, SettingsError
from cdc_pipeline.object_store.s3 import S3ObjectStore
from cdc_pipeline.object_store.s3_calls import S3Calls
from cdc_pipeline.object_store.s3_location import S3Location

LOCATION = S3Location(bucket="lake", endpoint="http://127.0.0.1:1", region="us-east-1", path_style=True)
KEYS = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "hidden", "SessionToken": "c"}


@pytest.fixture
def answer(tmp_path: Path) -> Iterator[Path]:
    """The file with what the program answers that gives this process its credentials."""
    answer = tmp_path / "answer"
    (tmp_path / "config").write_text(f"[default]\ncredential_process = cat {answer}\n")
    before = dict(os.environ)
    os.environ["AWS_CONFIG_FILE"] = str(tmp_path / "config")
    del os.environ["AWS_ACCESS_KEY_ID"]
    yield answer
    os.environ.pop("AWS_PROFILE", None)
    os.environ.update(before)


def opened() -> S3ObjectStore:
    return S3ObjectStore(LOCATION, timeout=timedelta(0), is_proven=True)


def test_credentials_that_are_refreshed_and_still_expired_are_an_outage(answer: Path) -> None:
    answer.write_text(json.dumps({**KEYS, "Expiration": "2020-01-01T00:00:00Z"}))
    with pytest.raises(ObjectStoreAway, match=r"under s3://lake failed: .*still expired.*valid now; correct") as caught:
        opened()
    assert "hidden" not in str(caught.value)


def test_credentials_that_expire_later_are_an_outage_of_each_call(answer: Path) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=5)
    answer.write_text(json.dumps({**KEYS, "Expiration": soon.isoformat()}))
    objects = opened()
    answer.write_text(json.dumps({**KEYS, "Expiration": "2020-01-01T00:00:00Z"}))
    for call in (objects.filesystem, lambda: objects.get("key"), lambda: objects.put_if_absent("key", b"")):
        with pytest.raises(ObjectStoreAway, match="still expired"):
            call()
    answer.unlink()
    for call in (objects.filesystem, lambda: objects.get("key")):
        with pytest.raises(ObjectStoreAway, match=r"(?s)No such file.*correct what refreshes the credentials"):
            call()


def test_no_credentials_at_all_are_no_outage(answer: Path) -> None:
    (answer.parent / "config").write_text("")
    with pytest.raises(SettingsError, match="there are no credentials for the lake on S3"):
        opened()


@pytest.mark.parametrize(
    ("config", "region", "words"),
    [
        ("[profile other]\n", "us-east-1", r"profile \(nosuch\) could not be found"),
        ("[profile nosuch\n", "us-east-1", "Unable to parse config file"),
        (
            "[profile nosuch]\naws_access_key_id = a\naws_secret_access_key = b\n",
            "eu central 1",
            "'eu central 1' doesn",
        ),
    ],
    ids=["no such profile", "no configuration", "no region"],
)
def test_settings_that_the_client_refuses_are_no_outage(answer: Path, config: str, region: str, words: str) -> None:
    (answer.parent / "config").write_text(config)
    os.environ["AWS_PROFILE"] = "nosuch"
    with pytest.raises(SettingsError, match=rf"under s3://lake failed: .*{words}.*; correct object_store"):
        S3ObjectStore(replace(LOCATION, region=region))


def test_another_error_of_the_client_is_no_outage() -> None:
    """A mistake in a program comes as it is, at once."""
    tries = []

    def call() -> None:
        tries.append(1)
        raise RuntimeError("cannot schedule new futures after shutdown")

    with pytest.raises(RuntimeError, match="cannot schedule new futures"):
        S3Calls("s3://lake", timedelta(seconds=1))("getting key", call)
    assert len(tries) == 1
