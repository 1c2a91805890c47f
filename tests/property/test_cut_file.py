"""What a cut file says is what was cut: a metadata store is rebuilt from nothing else."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.consume.cut_file import CutFile, TableIdentity, cut_file
from cdc_pipeline.metadata_store.ledger.cut import Cut, LateSlice, PartitionRange, QuarantinedEvent, Slice
from cdc_pipeline.metadata_store.ledger.records import Stream
from cdc_pipeline.record import Column, TableName, TableSchema
from cdc_pipeline.time_slice import EPOCH, Label

STREAM = Stream(name="shop", source_system_identifier="7000", source_timeline=1, slot="cdc_shop")
NAMES = st.text(min_size=1, max_size=5)
TEXTS = st.text(st.characters(), max_size=5)
ANY_TEXTS = st.text(st.characters(exclude_categories=()), max_size=5)
"""A line that is no UTF-8 waits in quarantine with lone surrogates for its bytes."""
OFFSETS = st.integers(0, 2**63 - 1).map(lambda number: f"{number:016x}")
COUNTS = st.integers(0, 10**12)
MOMENTS = st.integers(0, 10**16).map(lambda number: EPOCH + timedelta(microseconds=number))
TABLE_IDS = (3, 7, 12)
TABLES = st.builds(
    TableIdentity,
    table_uuid=st.uuids(),
    name=st.builds(TableName, database=NAMES, schema=NAMES, table=NAMES),
    source_oid=COUNTS,
    published_as=st.none() | TEXTS,
    stale=st.none() | TEXTS,
    cutoff_offset=st.none() | OFFSETS,
)
SCHEMAS = st.builds(
    TableSchema,
    columns=st.lists(st.builds(Column, name=NAMES, type=NAMES), max_size=3).map(tuple),
    key=st.lists(NAMES, max_size=2).map(tuple),
)
PLACES = st.tuples(st.sampled_from(TABLE_IDS), st.integers(0, 3))


@st.composite
def slices(draw: st.DrawFn, place: tuple[int, int], *, late: bool = False) -> Slice:
    table_id, stream_partition = place
    bounds = st.one_of(st.integers(), TEXTS)
    return Slice(
        table_id=table_id,
        stream_partition=stream_partition,
        path=draw(NAMES),
        sha256=draw(NAMES),
        size_bytes=draw(COUNTS),
        rows=draw(COUNTS),
        schema_id=draw(st.sampled_from("ab")),
        key_changes=draw(COUNTS),
        partial_rows=draw(COUNTS),
        truncates=draw(COUNTS),
        key_ranges=tuple(draw(st.lists(st.tuples(bounds, bounds), max_size=2))),
        truncated_at=draw(st.none() | TEXTS),
        late=late,
        oldest_version=draw(st.none() | TEXTS),
    )


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    start = draw(MOMENTS)
    places = sorted(draw(st.sets(PLACES, max_size=6)))
    events = st.builds(
        QuarantinedEvent,
        table_id=st.sampled_from(TABLE_IDS),
        stream_partition=st.integers(0, 3),
        version=TEXTS,
        reason=TEXTS,
        column=TEXTS,
        payload=st.dictionaries(ANY_TEXTS, st.none() | ANY_TEXTS, max_size=2),
    )
    parts = st.builds(
        PartitionRange,
        stream_partition=st.integers(0, 3),
        start_offset=OFFSETS,
        end_offset=OFFSETS,
        last_position=st.dictionaries(TEXTS, TEXTS, max_size=2),
        begun=st.dictionaries(st.integers(1, 9), TEXTS, max_size=2),
    )
    return Cut(
        stream=STREAM.name,
        start=draw(OFFSETS),
        position=draw(OFFSETS),
        commit_time=draw(MOMENTS),
        label=Label(start=start, end=start + timedelta(minutes=1)),
        partitions=tuple(draw(st.lists(parts, max_size=3))),
        tables=TABLE_IDS,
        slices=tuple(draw(slices(place)) for place in places),
        quarantined=tuple(draw(st.lists(events, max_size=2))),
        requested=draw(st.booleans()),
    )


@st.composite
def late_slices(draw: st.DrawFn) -> LateSlice:
    events = st.lists(st.tuples(st.none() | TEXTS, TEXTS), max_size=3)
    late = draw(slices(draw(PLACES), late=True))
    return LateSlice(slice=late, slice_id=draw(NAMES), events=tuple(draw(events)))


@given(
    cuts() | late_slices(),
    st.fixed_dictionaries(dict.fromkeys(TABLE_IDS, TABLES)),
    st.fixed_dictionaries(dict.fromkeys("ab", SCHEMAS)),
)
def test_what_is_read_back_is_what_was_written(
    content: Cut | LateSlice, tables: dict[int, TableIdentity], schemas: dict[str, TableSchema]
) -> None:
    file = cut_file(STREAM, tables, schemas, content)
    found = CutFile.from_bytes(file.to_bytes())
    assert found == file
    numbers = {identity.table_uuid: number for number, identity in tables.items()}
    if len(numbers) == len(TABLE_IDS):
        assert found.content_for([numbers[identity.table_uuid] for identity in found.tables]) == content
