"""Answers with success that are none of S3, such as the page on which a proxy asks for a login."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler

import pytest

from cdc_pipeline.errors import ObjectStoreAway
from cdc_pipeline.object_store.s3 import S3ObjectStore
from cdc_pipeline.object_store.s3_location import S3Location
from tests.support.served import served

PAGES = [b"<html><p>Log in</html>", b"<html><p>Log in</p></html>", b""]


@contextmanager
def started(page: bytes) -> Iterator[str]:
    """The endpoint of a server that answers everything with this page."""

    class Login(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

    with served(Login) as endpoint:
        yield endpoint


@pytest.mark.parametrize("page", PAGES, ids=["HTML", "XHTML", "empty"])
def test_a_listing_that_is_answered_with_the_page_of_a_proxy_is_an_outage_and_not_empty(page: bytes) -> None:
    with started(page) as endpoint:
        location = S3Location(bucket="lake", endpoint=endpoint, region="eu-west-1", path_style=True)
        objects = S3ObjectStore(location, timeout=timedelta(0))
        with pytest.raises(ObjectStoreAway, match=r"^listing shop/ under s3://lake "):
            list(objects.list_prefix("shop"))
