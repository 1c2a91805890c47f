"""The tables of the metadata store in schema `cdc`; the first migration makes them, a test holds it equal to them."""

from cdc_pipeline.metadata_store.models.ledger import *
from cdc_pipeline.metadata_store.models.operations import *
from cdc_pipeline.metadata_store.models.snapshots import *
