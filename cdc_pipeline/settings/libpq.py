"""Parameters of every connection to a PostgreSQL server, and remedies for what a server or its driver reports. Pure."""

from collections.abc import Mapping
from ipaddress import ip_address

CONNECTION_DEFAULTS: Mapping[str, int] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
"""A connection over a dead network fails within 25 seconds. `tcp_user_timeout` is in milliseconds."""
KEEPALIVES_OF_THE_SERVER = "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
"""Options of a connection: the server frees the locks of a machine that is gone within 25 seconds.

While it sends rows there, Linux sends them again for a quarter of an hour first. `tcp_user_timeout` would shorten that,
but also end the connection of a reader that only rests for as long, as during an upload.
"""
URL_FORM = "postgresql://user@host:port/database, with special characters of a password encoded: %40 for @, %2F for /"
INSUFFICIENT_PRIVILEGE = "42501"
NOT_UTF8 = frozenset({"22021", "22P05"})
"""SQLSTATE of a text that is invalid in its encoding, and of a character that UTF-8 lacks."""
_BY_STATE = {
    INSUFFICIENT_PRIVILEGE: "have an administrator run what cdc setup-source --print-sql prints",
    "42P01": "run cdc setup-source: it names what is missing",
    "3F000": "run cdc setup-source: it names what is missing",
    "42P10": "run cdc setup-source: it names what is missing",
    "55P03": "end the transaction that holds the lock, or wait for it: pg_locks shows it",
    "55006": "stop the other reader, or wait until the server has noticed that it is gone",
    "53300": "raise max_connections on the server, or end other sessions",
    "53400": "raise max_replication_slots and max_wal_senders on the server, and restart it",
    "55000": "run cdc setup-source: it names what the server lacks",
    **dict.fromkeys(NOT_UTF8, "correct the value in its table, run cdc setup-source --begin-again, then cdc snapshot"),
}
_BEGIN_AGAIN = "run cdc setup-source --begin-again, then cdc snapshot"
_BY_WORDS = (
    ('publication "', _BEGIN_AGAIN),
    ('replication slot "', _BEGIN_AGAIN),
    ("password authentication failed", "correct user and password in {setting}"),
    ("no password supplied", "put the password into {setting}, or into PGPASSWORD or ~/.pgpass"),
    ("no pg_hba.conf entry", "allow this host and user in the server's pg_hba.conf"),
    ("could not translate host name", "correct the host's name in {setting}, or the name server"),
    ("Connection refused", "start the server, or correct host and port in {setting}"),
    ("too many clients", _BY_STATE["53300"]),
    ("connection slots are reserved", _BY_STATE["53300"]),
    ("number of requested standby connections", "raise max_wal_senders on the server, and restart it"),
    ("is not permitted to log in", "run ALTER ROLE … LOGIN on the server, or correct the user in {setting}"),
    ("starting up", "wait until it has started"),
    ("shutting down", "start it again"),
    ("timeout expired", "correct host and port in {setting}, or repair the network between"),
    ("SSL", "correct sslmode and the certificates in {setting}; sslmode=prefer allows plain text to another machine"),
    ("does not exist", "create it on the server, or correct {setting}"),
)
_ANYTHING = "start it, or correct {setting}"
_ANSWERED = "correct what the server says, and run the command again"


def missing_defaults(given: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, int | str]:
    """Returns the connection parameters to add to those that the URL itself gives.

    A server on another machine gets `sslmode=require`, unless the URL or PGSSLMODE sets `sslmode`.
    """
    found: dict[str, int | str] = {name: value for name, value in CONNECTION_DEFAULTS.items() if name not in given}
    host = given.get("host") or given.get("hostaddr") or environment.get("PGHOST", "")
    if "sslmode" not in given and "PGSSLMODE" not in environment and not is_this_machine(str(host)):
        found["sslmode"] = "require"
    return found


def is_this_machine(host: str) -> bool:
    """Whether `host` is this machine: a name, an address, a socket's folder, or several of them separated by commas."""
    return all(map(_is_local, host.split(",")))


def _is_local(host: str) -> bool:
    try:
        return host in {"", "localhost"} or host.startswith(("/", "@")) or ip_address(host).is_loopback
    except ValueError:
        return False


def is_plain(given: Mapping[str, object]) -> bool:
    """Whether the URL was parsed as its author meant it.

    A password with an unencoded `@` or `/` ends up in the host, the port or the database.
    """
    port, host = str(given.get("port", "")), f"{given.get('host', '')}{given.get('dbname', '')}"
    return "@" not in host and (not port or port.replace(",", "").isdigit())


def one_line(words: object) -> str:
    """The text with each run of white space as one space."""
    return " ".join(str(words).split())


def remedy_for(words: str, sqlstate: str | None, *, setting: str, answered: bool = False) -> str:
    """Returns what to do about the message of a server or driver. Connection failures have no SQLSTATE, only words.

    `setting`: the setting of pipeline.yml that names the server. `answered`: the server runs and refuses something.
    """
    if sqlstate is not None and sqlstate in _BY_STATE:
        return _BY_STATE[sqlstate]
    known = next((remedy for part, remedy in _BY_WORDS if part in words), _ANSWERED if answered else _ANYTHING)
    return known.format(setting=setting)
