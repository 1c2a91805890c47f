"""The change stream of a source -> registered slice files."""
