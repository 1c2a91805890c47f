"""Reads the change stream of a source into registered slice files."""
