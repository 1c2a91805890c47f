"""Registered slices of a table -> one commit of its lake table."""
