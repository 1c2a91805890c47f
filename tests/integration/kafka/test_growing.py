"""Topics that get partitions while several consumers survey them."""

from dataclasses import replace
from pathlib import Path

import pytest

from cdc_pipeline.errors import StreamMoved
from cdc_pipeline.sources.kafka.survey import TopicSurvey
from tests.support.kafka import TopicFeed

pytestmark = pytest.mark.kafka

ORDERS, ITEMS = "public.orders", "public.items"
TABLES = tuple({"name": name, "id": ["id"], "columns": {"id": "int", "note": "text"}} for name in (ORDERS, ITEMS))


def test_a_survey_that_another_consumer_overtook_is_made_again(tmp_path: Path, store_url: str, kafka: str) -> None:
    """Else the offset of one partition would be that of another, whose records before it were passed over."""
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=kafka, tables=TABLES)
    for table in (ORDERS, ITEMS):
        feed.create(table)
    feed.set_up()
    with feed.opened() as pipeline:
        opening = pipeline.consumer_runs().opening

        def survey() -> TopicSurvey:
            found = opening.source.survey(opening.registered)
            assert isinstance(found, TopicSurvey)
            return found

        early = survey()
        feed.topics.grow(feed.topic(ORDERS), partitions=2)
        feed.write(ORDERS, 1, "one", partition=1)
        feed.go_on()
        with pytest.raises(StreamMoved, match="the stream partition 2 of the stream shop was registered meanwhile"):
            opening._check_stream(early)
        feed.topics.grow(feed.topic(ITEMS), partitions=2)
        with pytest.raises(StreamMoved, match=r"is .*\.orders \[1\], and was to be .*\.items \[1\]"):
            opening._check_stream(replace(survey(), progress=early.progress))
    feed.write(ITEMS, 2, "two", partition=1)
    feed.go_on()
    assert (feed.notes(ORDERS), feed.notes(ITEMS)) == ({1: "one"}, {2: "two"})


def test_a_record_of_a_table_that_is_not_set_up_yet_stops_no_other(tmp_path: Path, store_url: str, kafka: str) -> None:
    """It is in the topic of another table, and does not fit. Its own topic is not read yet."""
    feed = TopicFeed(folder=tmp_path, store_url=store_url, servers=kafka, tables=TABLES[:1])
    for table in (ORDERS, ITEMS):
        feed.create(table)
    feed.set_up()
    feed.topics.write(feed.topic(ORDERS), feed.event(ITEMS, 7, "astray") | {"after": {"id": "seven"}})
    feed.write(ORDERS, 1, "one")
    replace(feed, tables=TABLES).go_on()
    assert (feed.notes(ORDERS), feed.shown("quarantine")) == ({1: "one"}, [])
