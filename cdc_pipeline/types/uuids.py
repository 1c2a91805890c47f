"""UUIDs as PostgreSQL prints them, however a file spells them: an id in two spellings would be two rows."""

import re
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

_SPELLED = re.compile(r"\{?[0-9A-Fa-f]{8}(?:-?[0-9A-Fa-f]{4}){3}-?[0-9A-Fa-f]{12}\}?")
_PRINTED = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


def uuid_text(text: str) -> str:
    """Returns a UUID as PostgreSQL prints it. A text that is none stays as it is."""
    return str(UUID(text)) if _SPELLED.fullmatch(text) else text


def uuid_texts(texts: pa.Array) -> pa.Array | None:
    """Does the same for a whole column; None if one text needs a closer look."""
    lower = pc.ascii_lower(texts)
    return lower if pc.all(pc.match_substring_regex(lower, _PRINTED), min_count=0).as_py() else None
