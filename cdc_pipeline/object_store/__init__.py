"""The bucket: immutable objects under keys, put-if-absent, over a local folder or S3."""

from cdc_pipeline.object_store.protocol import ObjectInfo, ObjectStore

__all__ = ["ObjectInfo", "ObjectStore"]
