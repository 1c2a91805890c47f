"""Applies registered slices of a table by commits of its lake table."""
