"""From a committed row in the source to the same row in the lake."""
