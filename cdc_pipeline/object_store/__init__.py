"""Immutable objects under keys, written with put-if-absent, in a local folder or on S3."""

from cdc_pipeline.object_store.protocol import ObjectInfo, ObjectStore

__all__ = ["ObjectInfo", "ObjectStore"]
