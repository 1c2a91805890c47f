"""A server that refuses to send its log is told from one that no longer has the place."""

import pytest
from pymysql.err import OperationalError

from cdc_pipeline.errors import SourceAway, SourceError, SourceGap
from cdc_pipeline.sources.mysql.session import answering

NOT_SENT = 1236
TOO_MANY_OF_A_USER, LIMIT_OF_A_USER = 1203, 1226
UNKNOWN_COMMAND, OFFLINE = 1047, 3032
NO_RIGHT = (1044, 1142, 1143, 1227, 1370)


@pytest.mark.parametrize(
    "words",
    [
        "Could not find GTID state requested by slave in any binlog files. Probably the slave state is too old",
        "Error: connecting slave requested to start from GTID 0-1-7, which is not in the master's binlog",
        "The binlog on the master is missing the GTID 0-1-7 requested by the slave, and GTID strict mode is enabled",
        "Cannot replicate because the source purged required binary logs.",
        "Slave has more GTIDs than the master has, using the master's SERVER_UUID.",
        "Could not find first log file name in binary log index file",
    ],
)
def test_a_log_that_is_gone_needs_a_new_beginning(words: str) -> None:
    with pytest.raises(SourceGap, match="setup-source --begin-again"), answering():
        raise OperationalError(NOT_SENT, words)


@pytest.mark.parametrize(
    "words",
    [
        "Slave can not handle replication events with the checksum that master is configured to log; the first event",
        "A slave with the same server_uuid/server_id as this slave has connected to the master",
        "log event entry exceeded max_allowed_packet; Increase max_allowed_packet on master",
        "binlog truncated in the middle of event; consider out of disk space on master",
    ],
)
def test_a_log_that_is_there_and_not_sent_is_no_gap(words: str) -> None:
    with pytest.raises(SourceError, match="the source does not send its log: ") as failure, answering():
        raise OperationalError(NOT_SENT, words)
    assert not isinstance(failure.value, SourceGap)


@pytest.mark.parametrize("code", [TOO_MANY_OF_A_USER, LIMIT_OF_A_USER])
def test_a_limit_of_the_user_passes_as_that_of_the_server_does(code: int) -> None:
    with pytest.raises(SourceAway, match="raise the limits of this user"), answering():
        raise OperationalError(code, "User cdc already has more than 'max_user_connections' active connections")


@pytest.mark.parametrize(
    ("code", "words", "remedy"),
    [
        (OFFLINE, "The server is currently in offline mode", "turn offline_mode off"),
        (UNKNOWN_COMMAND, "WSREP has not yet prepared node for application use", "join its cluster"),
    ],
)
def test_a_server_that_serves_nobody_for_a_while_is_away(code: int, words: str, remedy: str) -> None:
    with pytest.raises(SourceAway, match=remedy), answering():
        raise OperationalError(code, words)


def test_a_proxy_that_does_not_pass_on_the_log_is_refused_at_once() -> None:
    with pytest.raises(SourceError, match="name the server itself") as refused, answering():
        raise OperationalError(UNKNOWN_COMMAND, "Unknown command")
    assert not isinstance(refused.value, SourceAway)


@pytest.mark.parametrize("code", NO_RIGHT)
def test_a_missing_right_names_the_page_that_lists_the_rights(code: int) -> None:
    with pytest.raises(SourceError, match=r"grant the rights that docs/how-to/mysql\.md lists") as refused, answering():
        raise OperationalError(code, "the command is denied to user 'cdc'@'%'")
    assert "--print-sql" not in str(refused.value), "with MySQL it prints no GRANT"
