"""The columnar decoder equals the plain one for every stream and every way to cut it into feeds."""

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_pipeline.errors import DecodeError
from cdc_pipeline.sources.pgoutput.decoder import PgOutputDecoder
from cdc_pipeline.sources.pgoutput.messages import Relation, RelationColumn
from tests.support import pgoutput_encoder as encode
from tests.support.pgoutput_reference import ReferenceDecoder, as_reference

OIDS = (16_400, 16_401, 16_402)
WORDS = st.text(max_size=20) | st.text(st.sampled_from("aé€😀"), min_size=11, max_size=14)
TEXTS = st.builds(encode.text, WORDS)
FIELDS = st.one_of(TEXTS, TEXTS, st.just(encode.NULL), st.just(encode.UNCHANGED))
TIMES = st.integers(0, 2_000_000_000_000_000)


@dataclass
class Source:
    """A server in small: it describes a relation before the first event of it, and again after a change."""

    messages: list[bytes]
    column_counts: dict[int, int]


def describe(oid: int, count: int) -> Relation:
    columns = tuple(
        RelationColumn(name=f"c{number}", type_oid=25, modifier=-1, is_key=number == 0) for number in range(count)
    )
    return Relation(oid=oid, namespace="public", name=f"t{oid}", replica_identity="d", columns=columns)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    source = Source([], {})
    lsn = 1_000
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.integers(0, 5)) == 0:
            source.messages.append(
                encode.logical_message(lsn, "beat", draw(st.binary(max_size=5)), transactional=False)
            )
        lsn += draw(st.integers(1, 1 << 40))
        time = draw(TIMES)
        source.messages.append(encode.begin(lsn, time, draw(st.integers(1, (1 << 32) - 1))))
        if draw(st.booleans()):
            source.messages.append(encode.origin(lsn, "elsewhere"))
        for _ in range(draw(st.integers(0, 6))):
            draw_event(draw, source, lsn)
        source.messages.append(encode.commit(lsn, lsn + 8, time))
    return source.messages[: draw(st.integers(0, len(source.messages)))] if draw(st.booleans()) else source.messages


def draw_event(draw: st.DrawFn, source: Source, lsn: int) -> None:
    oid = draw(st.sampled_from(OIDS))
    if oid not in source.column_counts or draw(st.integers(0, 9)) == 0:
        source.column_counts[oid] = draw(st.integers(1, 4))
        source.messages.append(encode.type_name(99_000, "shop", "mood"))
        source.messages.append(encode.relation(describe(oid, source.column_counts[oid])))
    count = source.column_counts[oid]

    def image() -> list[encode.Field]:
        return draw(st.lists(FIELDS, min_size=count, max_size=count))

    kind = draw(st.sampled_from(["insert", "update", "key", "old", "delete", "truncate", "message", "again"]))
    events = {
        "insert": lambda: encode.insert(oid, image()),
        "update": lambda: encode.update(oid, image()),
        "key": lambda: encode.update(oid, image(), "K", image()),
        "old": lambda: encode.update(oid, image(), "O", image()),
        "delete": lambda: encode.delete(oid, draw(st.sampled_from("KO")), image()),
        "truncate": lambda: encode.truncate(sorted(source.column_counts), draw(st.integers(0, 3))),
        "message": lambda: encode.logical_message(lsn, "note", b"\x00\xff", transactional=True),
        "again": lambda: encode.relation(describe(oid, count)),
    }
    source.messages.append(events[kind]())


@settings(max_examples=300, deadline=None)
@given(stream=streams(), data=st.data())
def test_any_stream_cut_anywhere_decodes_as_the_plain_decoder_does(stream: list[bytes], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    decoder, reference = PgOutputDecoder(), ReferenceDecoder()
    edges = [0, *cuts, len(stream)]
    batches = [decoder.feed(stream[start:end]) for start, end in pairwise(edges)]
    for message in stream:
        reference.feed(message)
    assert as_reference(batches) == reference.decoded


@settings(max_examples=300, deadline=None)
@given(stream=streams().filter(len), data=st.data())
def test_a_damaged_byte_or_a_lost_tail_never_ends_in_anything_but_a_decode_error(
    stream: list[bytes], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(stream) - 1))
    message = stream[place]
    cut = data.draw(st.integers(0, len(message) - 1))
    damage = data.draw(st.sampled_from([message[:cut], message[:cut] + b"\xff" + message[cut + 1 :], message + b"\0"]))
    decoder = PgOutputDecoder()
    try:
        decoder.feed([*stream[:place], damage, *stream[place + 1 :]])
    except DecodeError:
        assert decoder.open_transaction is None
        assert decoder.relations == {}
