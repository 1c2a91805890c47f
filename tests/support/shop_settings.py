"""Small settings for tests that need some."""

from pathlib import Path

from cdc_pipeline.settings import Settings
from cdc_pipeline.settings.file import parse_settings

SHOP = """
name: shop
lake: lake
source: {kind: postgres, publication: cdc_shop, slot: cdc_shop}
tables:
  - name: shop.public.orders
"""


def shop_settings(folder: Path, **environment: str) -> Settings:
    """Everything embedded; `environment` overrides, as CDC_ variables do."""
    return parse_settings(SHOP, path=folder / "pipeline.yml", environment=environment)
