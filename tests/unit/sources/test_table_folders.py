"""A table whose name is too long for a folder of the lake is refused by itself."""

import pytest

from cdc_pipeline.errors import SourceError
from cdc_pipeline.settings import TableSettings
from cdc_pipeline.sources.table_checks import check_folder

ORDERS = TableSettings.model_validate({"name": "shop.shop.orders", "id": ["id"]})


@pytest.mark.parametrize(
    ("name", "more"),
    [("表" * 23, {}), ("表" * 22 + "a", {"history": True}), ("a" * 193, {"history": True})],
    ids=["the table", "its history", "its history in ASCII"],
)
def test_a_table_whose_folder_cannot_have_its_name_is_refused_as_a_table(name: str, more: dict[str, bool]) -> None:
    settings = TableSettings.model_validate({"name": f"shop.shop.{name}", "id": ["id"], **more})
    check_folder(ORDERS, [ORDERS, settings])
    with pytest.raises(SourceError, match=r"cannot be a folder .* rename it, or leave the table out"):
        check_folder(settings, [settings])


def test_a_table_whose_names_fit_is_not_refused() -> None:
    settings = TableSettings.model_validate({"name": f"shop.shop.{'a' * 192}", "id": ["id"], "history": True})
    check_folder(settings, [settings])
    plain = TableSettings.model_validate({"name": f"shop.shop.{'a' * 200}", "id": ["id"]})
    check_folder(plain, [plain])
