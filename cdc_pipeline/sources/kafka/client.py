"""A client of a Kafka cluster: its settings, and its errors as ours."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Never, TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from cdc_pipeline.errors import SettingsError, SourceAway, SourceError
from cdc_pipeline.settings.kafka import KafkaSource

log = structlog.get_logger()

CALL_SECONDS = 15.0
"""How long one request may take before the cluster counts as away."""
ANSWER_SECONDS = CALL_SECONDS + 5
"""The client itself ends each request in time, with the reason: whoever waits for that waits a little longer."""
_LOOK_SECONDS = 1.0
_CRITICAL = 2
_QUEUED_KILOBYTES = 32 << 10
"""What the client may fetch ahead. It bounds the memory of a consumer, whatever the number of partitions."""
_COMMIT_MILLISECONDS = 3_000
"""How long `close` waits for a commit while the group has no coordinator: librdkafka waits for a session's time."""
_REFUSED = {
    KafkaError._AUTHENTICATION,  # noqa: SLF001 - librdkafka's own codes begin with an underscore
    KafkaError._SSL,  # noqa: SLF001
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_LOST = ("transport failure", "disconnected", "timed out")
Answer = TypeVar("Answer")


class KafkaClient:
    """A client that reads assigned partitions and asks for the state of topics. Connects at the first call.

    It never joins a consumer group: `group` names only where `commit` writes, for tools that show the lag. It never
    moves to another offset by itself: an offset that the broker does not have is an error.
    """

    def __init__(self, settings: KafkaSource, folder: Path, *, group: str) -> None:
        self.servers = settings.servers
        self._trouble: KafkaError | None = None
        login = _login(settings, folder) | {"bootstrap.servers": settings.servers, "error_cb": self._note}
        login |= {"client.id": "cdc-pipeline", "log_level": _CRITICAL}
        reading = {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": True,
            "allow.auto.create.topics": False,
            "queued.max.messages.kbytes": _QUEUED_KILOBYTES,
            "session.timeout.ms": _COMMIT_MILLISECONDS,
        }
        try:
            self.consumer = Consumer(login | reading)
            self.admin = AdminClient(login)
        except KafkaException as error:
            raise SettingsError(
                f"the Kafka client refuses its settings: {error.args[0].str()}",
                remedy="correct source in pipeline.yml",
            ) from error

    @property
    def trouble(self) -> KafkaError | None:
        """The last error of a connection since `forget_trouble`. The client connects again by itself."""
        return self._trouble

    def forget_trouble(self) -> None:
        self._trouble = None

    def ask(self, call: Callable[[], Answer]) -> Answer:
        """Returns the result of a call. Raises SourceAway if the cluster does not answer, SourceError if it refuses."""
        try:
            return call()
        except KafkaException as error:
            self.fail(error.args[0])

    def result(self, future: Future[Answer]) -> Answer:
        """Waits for the answer to a request of `admin`. Raises KafkaException as the client does.

        Raises SourceAway if this process was stopped.
        """
        try:
            return future.result(ANSWER_SECONDS)
        except TimeoutError:
            self.fail(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - librdkafka's own name

    def metadata(self) -> ClusterMetadata:
        """Returns the cluster's topics. Raises as `ask` does: at once if the brokers refuse the login.

        The client reports why a connection broke only when it is polled, and tries a refused login again without end.
        """
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            try:
                return self.admin.list_topics(timeout=_LOOK_SECONDS)
            except KafkaException as error:
                self.admin.poll(0)
                if _is_refused(self._trouble) or time.monotonic() > deadline:
                    self.fail(error.args[0])

    def fail(self, error: KafkaError) -> Never:
        """Raises the error as one of ours. The client reports a refused login only as a connection that fails."""
        cause = self._trouble if self._trouble is not None and _is_refused(self._trouble) else error
        if _is_refused(cause):
            raise SourceError(
                f"the Kafka brokers {self.servers} refuse: {cause.str()}",
                expected="a user who may read and describe the topics",
                remedy="correct security, username, password or the certificates of source, or the user's rights",
            )
        raise SourceAway(
            f"the Kafka brokers {self.servers} do not answer: {cause.str()}",
            remedy="start them, or correct source.servers in pipeline.yml",
        )

    def close(self) -> None:
        self.consumer.close()
        del self.admin  # Its threads and connections end with the last reference, and it is in a cycle with `_note`.

    def _note(self, error: KafkaError) -> None:
        if self._trouble is None or (_is_refused(error) and not _is_refused(self._trouble)):
            log.warning("Kafka connection in trouble", servers=self.servers, found=error.str())
            self._trouble = error


def _is_refused(error: KafkaError | None) -> bool:
    """Returns whether the brokers refuse the login. A connection lost during it has the same code as a refusal."""
    if error is None or error.code() not in _REFUSED:
        return False
    is_of_login = error.code() == KafkaError._AUTHENTICATION  # noqa: SLF001
    return not (is_of_login and any(word in error.str().lower() for word in _LOST))


def _login(settings: KafkaSource, folder: Path) -> dict[str, Any]:
    """Returns librdkafka's settings of an encrypted or authenticated connection. Only these can be set."""
    found: dict[str, Any] = {"security.protocol": settings.security}
    if settings.username is not None:
        password = settings.password.get_secret_value() if settings.password else _read(settings.password_file, folder)
        found |= {
            "sasl.mechanism": settings.mechanism,
            "sasl.username": settings.username,
            "sasl.password": password,
        }
    files = {
        "ssl.ca.location": settings.ca_file,
        "ssl.certificate.location": settings.certificate_file,
        "ssl.key.location": settings.key_file,
    }
    found |= {name: str(folder / path) for name, path in files.items() if path is not None}
    if settings.key_password is not None:
        found["ssl.key.password"] = settings.key_password.get_secret_value()
    return found


def _read(name: str | None, folder: Path) -> str:
    path = folder / (name or "")
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is no text'}",
            expected="the file with the password of the Kafka user",
            remedy="correct source.password_file in pipeline.yml",
        ) from error
