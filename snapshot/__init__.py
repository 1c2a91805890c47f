"""The initial lake as of a Snapshot Cutoff Time: staged and compacted by worker slots, published by one commit."""
