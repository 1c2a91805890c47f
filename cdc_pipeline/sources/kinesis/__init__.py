"""Streams of shards as a source: AWS Kinesis, and what DynamoDB's streams have in common with it."""
