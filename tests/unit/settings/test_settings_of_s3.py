"""pipeline.yml of a lake on S3: no credential, no open network, no prefix that could be read otherwise."""

import pytest

from tests.support.settings_texts import changed, parsed, refusal

NO_HOSTS = ("a..b", "minio-.local", "-h", ".a", f"{'a' * 64}.local", ".".join(["a" * 60] * 5))
"""Labels that no host name has, which AWS's client refuses with an error of its own."""


def test_a_lake_on_s3_tells_its_server() -> None:
    settings = parsed(changed("lake: lake", "lake: s3://bucket/a/b=c/\nobject_store: {endpoint: https://s3.example}"))
    assert (settings.lake_url, settings.on_s3) == ("s3://bucket/a/b=c", True)
    assert (settings.object_store.endpoint, settings.object_store.path_style) == ("https://s3.example", False)
    assert not parsed().on_s3


@pytest.mark.parametrize(
    ("lake", "words"),
    [
        ("s3://KEY:HIDDEN@bucket/x", "line 2: lake: the lake contains a credential: remove it, and use AWS_"),
        ("s3://KEY:HI/DDEN@bucket/x", "line 2: lake: the lake contains a credential"),
        ("s3://KEY:HIDDEN/x", "line 2: lake: the lake names no bucket"),
        ("s3://bucket/x?X-Amz-Signature=HIDDEN", "line 2: lake: the lake has text after a '?' or '#'"),
        ("s3:///x", "line 2: lake: the lake names no bucket: write s3://bucket/prefix"),
        ("s3://bucket/a b", "line 2: lake: 'a b' cannot be part of a lake's prefix"),
        ("s3://bucket/a//b", "line 2: lake: '' cannot be part of a lake's prefix"),
        (
            "S3://KEY:HIDDEN@bucket",
            "line 2: lake: a location that begins with S3:/ is not read: write a folder, file:///",
        ),
        ("file://./lake", "line 2: lake: a location that begins with file:/ is not read"),
        ("file://lake/shop", "line 2: lake: a location that begins with file:/ is not read"),
        ("http://[::1", "line 2: lake: a location that begins with http:/ is not read"),
        ("s3://bucket/a/../b", "line 2: lake: '..' cannot be part of a lake's prefix"),
    ],
)
def test_a_lake_on_s3_is_a_bucket_and_a_prefix_and_no_credential(lake: str, words: str) -> None:
    message = refusal(changed("lake: lake", f"lake: '{lake}'"))
    assert words in message
    assert "HIDDEN" not in message


@pytest.mark.parametrize(
    ("lake", "words"),
    [
        ("'file:///'", "line 2: lake: the root of all folders cannot be a lake"),
        ("/", "line 2: lake: the root of all folders cannot be a lake"),
        ("/.", "line 2: lake: the root of all folders cannot be a lake"),
        ("/data/..", "line 2: lake: the root of all folders cannot be a lake"),
        (f"lake/{'../' * 100}", "line 2: lake: the root of all folders cannot be a lake"),
        ("'file:///%2F'", "line 2: lake: the root of all folders cannot be a lake"),
        ("'file:///%2E%2E'", "line 2: lake: the root of all folders cannot be a lake"),
        ("'file:///data/a#b'", "line 2: lake: the lake has a '?' or '#': write %3F or %23"),
        ("'file:///data/a#b'", "as it is written, the URL names the folder /data/a"),
        ("'file:///data/a%20c?b'", "as it is written, the URL names the folder /data/a c"),
        ("'file:///data/a?b'", "line 2: lake: the lake has a '?' or '#'"),
        ('"a\\0b"', "line 2: lake: a location with the character NUL cannot exist"),
        ("file:///data/a%00b", "line 2: lake: a location with the character NUL cannot exist"),
        ("~/lake", "line 2: lake: no '~' and no variable is replaced in a lake: write the folder's own name"),
        ("~ann/lake", "line 2: lake: no '~' and no variable is replaced in a lake"),
        ("$HOME/lake", "line 2: lake: no '~' and no variable is replaced in a lake"),
        ("'${LAKE}'", "line 2: lake: no '~' and no variable is replaced in a lake"),
        ("/data/${STAGE}/lake", "line 2: lake: no '~' and no variable is replaced in a lake"),
        ("file:///data/${STAGE}", "line 2: lake: no '~' and no variable is replaced in a lake"),
        ("'/data/[prod]/lake'", "line 2: lake: /data/[prod]/lake has [ and ]: Spark reads such a path as a pattern"),
        ("file:///data/a%3Fb", "line 2: lake: /data/a?b has ?: Spark reads such a path as a pattern"),
    ],
)
def test_a_folder_that_would_be_another_one_is_no_lake(lake: str, words: str) -> None:
    assert words in refusal(changed("lake: lake", f"lake: {lake}"))


def test_change_files_in_a_folder_with_nul_are_refused() -> None:
    source = 'source: {kind: change_files, format: upserts, path: "a\\0b"}'
    text = changed("source: {kind: postgres, publication: cdc_shop, slot: cdc_shop}", source)
    assert "line 4: source.path: a location with the character NUL cannot exist" in refusal(text)


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("endpoint: 'https://KEY:HIDDEN@s3.example'", "line 3: object_store: the endpoint contains a credential"),
        ("endpoint: s3.example", "line 3: object_store: 's3.example' is not an endpoint: write https://host"),
        *(
            (
                f"endpoint: 'https://{host}'",
                f"line 3: object_store: 'https://{host}' is not an endpoint: write https://",
            )
            for host in ("local host", "minio_1:9000", "s3.example:port", "a%20b", *NO_HOSTS)
        ),
        ("endpoint: 'http://s3.example'", "would send data unencrypted: write https, or set allow_http: true"),
        ("endpont: 'https://s3.example'", "the key 'object_store.endpont' is unknown; did you mean 'endpoint'?"),
    ],
)
def test_a_server_that_would_leak_or_is_none_is_refused(server: str, words: str) -> None:
    message = refusal(changed("lake: lake", f"lake: s3://bucket\nobject_store: {{{server}}}"))
    assert words in message
    assert "HIDDEN" not in message


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9000", "http://localhost", "http://[::1]:1", "http://a, true"])
def test_plain_http_is_for_this_machine_or_by_permission(endpoint: str) -> None:
    url, _, allowed = endpoint.partition(", ")
    environment = {"CDC_OBJECT_STORE__ENDPOINT": url} | ({"CDC_OBJECT_STORE__ALLOW_HTTP": allowed} if allowed else {})
    assert parsed(changed("lake: lake", "lake: s3://bucket"), environment).object_store.endpoint == url


def test_a_host_that_ends_with_the_dot_of_the_root_is_an_endpoint() -> None:
    text = changed("lake: lake", "lake: s3://bucket\nobject_store: {endpoint: https://minio-1.local.:9000}")
    assert parsed(text).object_store.endpoint == "https://minio-1.local.:9000"
