"""The stored state of one installation: its id, ports, secrets, processes and locks.

<home>/installation.json   id, ports, secrets (0600)
<home>/plan.json           the processes to keep up, with their environment (0600)
<home>/processes.json      their states as the supervisor sees them
<home>/logs/<process>.log
"""

import fcntl
import json
import os
import secrets
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cdc_pipeline.errors import SettingsError, SetupError
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.installation.ports import free_port, is_listening

OWN_FOLDER = ".cdc"
PORT_NAMES = ("postgres", "spark", "airflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """`identity` marks every process of this installation, so that `down` ends those and no others.

    `postgres_password`: of the embedded server's superuser. Each of its databases has a role of its own.
    """

    home: Path
    identity: str
    ports: Mapping[str, int]
    postgres_password: str = field(repr=False)
    airflow_database_password: str = field(repr=False)
    metadata_password: str = field(repr=False)
    source_password: str = field(repr=False)
    jwt_secret: str = field(repr=False)
    spark_token: str = field(repr=False)
    airflow_password: str = field(repr=False)

    @property
    def plan(self) -> Path:
        return self.home / "plan.json"

    @property
    def processes(self) -> Path:
        return self.home / "processes.json"

    def log(self, process: str) -> Path:
        return self.home / "logs" / f"{process}.log"


def home_of(settings: Settings, environment: Mapping[str, str]) -> Path:
    """CDC_HOME, else `.cdc` beside pipeline.yml; absolute."""
    return home_in(settings.folder, environment)


def home_in(folder: Path, environment: Mapping[str, str]) -> Path:
    """The same for a pipeline.yml in this folder that was not read yet."""
    return Path(environment.get("CDC_HOME") or folder / OWN_FOLDER).absolute()


def open_installation(home: Path) -> Installation:
    """Reads the state in `home`. A new installation gets random secrets and free ports, which are stored."""
    try:
        home.mkdir(mode=0o711, parents=True, exist_ok=True)
        (home / "logs").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"the state folder {home} cannot be created: {error.strerror}",
            expected="a folder that this account may write",
            remedy="correct CDC_HOME, or the rights of the folder",
        ) from error
    with exclusive(home / "installation.lock"):
        path = home / "installation.json"
        if path.exists():
            return _read(home, path)
        installation = Installation(home=home, ports=_free_ports(PORT_NAMES), **_secrets())
        _store(installation)
        return installation


def _read(home: Path, path: Path) -> Installation:
    try:
        return Installation(home=home, **json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise SetupError(
            f"{path} cannot be read: {error}",
            expected="the ports and secrets that the first start stored there",
            remedy="bring the file back from a copy; without one, end the processes by hand, and set CDC_HOME to a new"
            " folder",
        ) from error


def _secrets() -> dict[str, str]:
    return {
        "identity": str(uuid.uuid4()),
        "postgres_password": secrets.token_urlsafe(24),
        "airflow_database_password": secrets.token_urlsafe(24),
        "metadata_password": secrets.token_urlsafe(24),
        "source_password": secrets.token_urlsafe(24),
        "jwt_secret": secrets.token_urlsafe(96),
        "spark_token": secrets.token_urlsafe(32),
        "airflow_password": secrets.token_urlsafe(12),
    }


def with_free_ports(installation: Installation, names: Iterable[str]) -> Installation:
    """Replaces those of the named ports on which another process listens, and stores the result."""
    taken = [name for name in names if is_listening(installation.ports[name])]
    if not taken:
        return installation
    renewed = replace(installation, ports={**installation.ports, **_free_ports(taken)})
    _store(renewed)
    return renewed


def _free_ports(names: Iterable[str]) -> dict[str, int]:
    ports: dict[str, int] = {}
    for name in names:
        port = free_port()
        while port in ports.values():
            port = free_port()
        ports[name] = port
    return ports


def _store(installation: Installation) -> None:
    document = asdict(installation)
    del document["home"]
    write_document(installation.home / "installation.json", document)


def write_document(path: Path, document: Any) -> None:
    """Replaces the file atomically. Only its owner may read it."""
    write_private_text(path, json.dumps(document, indent=1))


def write_private_text(path: Path, text: str) -> None:
    """Replaces the file atomically. Only its owner may read it."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on the file and waits for it. The kernel releases it when the holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
