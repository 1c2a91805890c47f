"""Versions of whole columns are the same text as versions one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cdc_pipeline.record import encode_version
from cdc_pipeline.sources.version_text import version_texts

VERSIONS = st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1)))


@given(VERSIONS)
def test_versions_of_columns_equal_versions_one_by_one(versions: list[tuple[int, int]]) -> None:
    positions = np.array([position for position, _ in versions], dtype=np.int64)
    ordinals = np.array([ordinal for _, ordinal in versions], dtype=np.int64)
    assert version_texts(positions, ordinals).to_pylist() == [encode_version(*version) for version in versions]
