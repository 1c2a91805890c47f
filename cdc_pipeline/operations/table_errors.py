"""Keeps every error of one table to that table, so that the others continue."""

from collections.abc import Callable
from typing import TypeVar

import structlog

from cdc_pipeline.errors import CdcError, LakeError, ObjectStoreAway, TablePauses, damaged_file, is_outage
from cdc_pipeline.record import TableName

log = structlog.get_logger()
Result = TypeVar("Result")


def result_or_error(call: Callable[[], Result], table: TableName, *, otherwise: str) -> Result | CdcError:
    """Returns the result of `call`, or the error that ended it, of any kind.

    Logs the error as `otherwise`, unless the table only pauses.
    """
    try:
        return call()
    except TablePauses as error:
        return error
    except CdcError as error:
        log.warning(otherwise, table=str(table), found=str(error))
        return error
    except OSError as error:
        failure = _of_file(error)
        log.warning(otherwise, table=str(table), found=str(failure))
        return failure
    except Exception as error:  # every error of a table is caught, so that other tables continue
        log.exception(otherwise, table=str(table))
        return LakeError.unforeseen(error)


def _of_file(error: OSError) -> CdcError:
    if is_outage(error):
        return ObjectStoreAway(f"a file cannot be read or written: {error}", remedy="the same call is safe to repeat")
    return damaged_file(f"a file is damaged: {error}")
