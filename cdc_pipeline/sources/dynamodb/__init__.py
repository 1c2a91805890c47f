"""Tables of DynamoDB as a source, read by their streams. A stream has shards, as those of Kinesis have."""
