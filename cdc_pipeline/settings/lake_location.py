"""The location of a lake as users write it: a folder, or a bucket, a prefix and a server of S3."""

import re
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath
from urllib.parse import SplitResult, unquote, urlsplit

from cdc_pipeline.settings.libpq import is_this_machine

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
_SERVER = re.compile(rf"((?!.{{256}}){_LABEL}(\.{_LABEL})*\.?|\[[^]\s]+\])(:[0-9]*)?")
_FOLDER = re.compile(r"[A-Za-z0-9_.=-]+")
_CREDENTIALS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or the machine's role"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_OF_PATTERNS = frozenset("*?[]{}\\")
S3 = "s3"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Prefix:
    """`prefix` has no slash at either end and may be empty."""

    bucket: str
    prefix: str


def is_on_s3(lake: str) -> bool:
    return lake.startswith(f"{S3}://")


def check_location(url: str) -> None:
    """Raises ValueError unless it is a folder, `file:///folder` or `s3://bucket/prefix`, without repeating it."""
    if "\0" in (unquote(url) if url.startswith("file://") else url):
        message = "a location with the character NUL cannot exist: leave it out"
        raise ValueError(message)
    scheme = _SCHEME.match(url)
    if is_on_s3(url):
        parse_s3(url)
    elif scheme and not url.startswith("file:///"):
        message = (
            f"a location that begins with {scheme[0]} is not read: write a folder, file:///folder or s3://bucket/x"
        )
        raise ValueError(message)


def check_lake(url: str, beside: Path) -> None:
    """Checks a location as `check_location` does; a lake also needs a folder that no part of a URL cuts short.

    `beside`: the folder that a relative location starts at.
    """
    check_location(url)
    if is_on_s3(url):
        return
    if url.startswith(("~", "$")) or "${" in url:
        message = (
            "no '~' and no variable is replaced in a lake: write the folder's own name, with ./ before it if it begins"
            " with '~' or '$', and as file:///folder with %24 for '$' if it has '${'"
        )
        raise ValueError(message)
    folder = unquote(urlsplit(url).path) if url.startswith("file://") else url
    if not normpath(beside / folder).strip("/"):
        message = "the root of all folders cannot be a lake: name a folder below it"
        raise ValueError(message)
    absolute = str(beside.absolute() / folder)
    if pattern := sorted(set(absolute) & _OF_PATTERNS):
        message = (
            f"{absolute} has {' and '.join(pattern)}: Spark reads such a path as a pattern, and would not find"
            " the lake's files; name a folder without * ? [ ] { } and backslash"
        )
        raise ValueError(message)
    if url.startswith("file://") and ("?" in url or "#" in url):
        message = (
            "the lake has a '?' or '#': write %3F or %23, or the folder without file://;"
            f" as it is written, the URL names the folder {folder}"
        )
        raise ValueError(message)


def parse_s3(lake: str) -> S3Prefix:
    """Parses `s3://bucket/prefix`. Raises ValueError, without repeating a credential."""
    parts = _without_credential(lake, "the lake")
    folders = parts.path.strip("/").split("/") if parts.path.strip("/") else []
    if not _BUCKET.fullmatch(parts.netloc):
        message = (
            "the lake names no bucket: write s3://bucket/prefix, with small letters, digits, '.' and '-' in the bucket"
        )
        raise ValueError(message)
    for folder in folders:
        if not _FOLDER.fullmatch(folder) or folder in {".", ".."}:
            message = f"{folder!r} cannot be part of a lake's prefix: use letters, digits, '_', '.', '=' and '-'"
            raise ValueError(message)
    return S3Prefix(bucket=parts.netloc, prefix="/".join(folders))


def parse_endpoint(endpoint: str, *, allow_http: bool) -> str:
    """Parses `https://host[:port]`. Plain http is for this machine, or where it is allowed. Raises ValueError."""
    parts = _without_credential(endpoint, "the endpoint")
    host = parts.hostname if _SERVER.fullmatch(parts.netloc) else None
    if parts.scheme not in {"http", "https"} or not host or parts.path.strip("/"):
        message = (
            f"{endpoint!r} is not an endpoint: write https://host or https://host:port,"
            " with letters, digits and '-' in the host, and '.' between parts that begin and end with a letter or digit"
        )
        raise ValueError(message)
    if parts.scheme == "http" and not allow_http and not is_this_machine(host):
        message = f"{endpoint!r} would send data unencrypted: write https, or set allow_http: true"
        raise ValueError(message)
    return f"{parts.scheme}://{parts.netloc}"


def _without_credential(url: str, what: str) -> SplitResult:
    if "@" in url:
        message = f"{what} contains a credential: remove it, and use {_CREDENTIALS}"
        raise ValueError(message)
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        message = f"{what} has text after a '?' or '#': remove it; for credentials use {_CREDENTIALS}"
        raise ValueError(message)
    return parts
