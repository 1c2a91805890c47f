"""One whole pipeline.yml, changed text by text, and how it is refused."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.file import parse_settings

FILE = Path("/somewhere/pipeline.yml")
WHOLE = """\
name: shop
lake: lake
slice_length: 60s
source: {kind: postgres, publication: cdc_shop, slot: cdc_shop}
tables:
  - name: shop.public.orders
    id: [order_id]
    partition_by: [{column: created_at, unit: month}]
  - name: shop.public.customers
"""


def parsed(text: str = WHOLE, environment: Mapping[str, str] | None = None) -> Settings:
    return parse_settings(text, path=FILE, environment=environment or {})


def changed(old: str, new: str) -> str:
    assert old in WHOLE
    return WHOLE.replace(old, new)


def refusal(text: str, environment: Mapping[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        parsed(text, environment)
    assert caught.value.exit_code == 2
    return str(caught.value)
