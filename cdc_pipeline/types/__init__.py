"""Types of the source -> Arrow -> Delta: one table of types, and one rule per type for values that do not fit."""

from cdc_pipeline.types.debezium import PLACEHOLDER_TEXTS, debezium_column, is_placeholder, parse_debezium
from cdc_pipeline.types.decimals import decimal_texts
from cdc_pipeline.types.declared import declared_type
from cdc_pipeline.types.printed import printed_text
from cdc_pipeline.types.table import (
    TABLE,
    ColumnType,
    TypeRule,
    arrow_schema,
    canonical_name,
    changed_types,
    numeric_name,
    resolve,
    text_of,
    widest,
)
from cdc_pipeline.types.text import Parsed, parse_foreign_text, parse_text
from cdc_pipeline.types.whole_columns import as_column, of_one_kind, parse_whole_column
from cdc_pipeline.types.widening import wider

__all__ = [
    "PLACEHOLDER_TEXTS",
    "TABLE",
    "ColumnType",
    "Parsed",
    "TypeRule",
    "arrow_schema",
    "as_column",
    "canonical_name",
    "changed_types",
    "debezium_column",
    "decimal_texts",
    "declared_type",
    "is_placeholder",
    "numeric_name",
    "of_one_kind",
    "parse_debezium",
    "parse_foreign_text",
    "parse_text",
    "parse_whole_column",
    "printed_text",
    "resolve",
    "text_of",
    "wider",
    "widest",
]
