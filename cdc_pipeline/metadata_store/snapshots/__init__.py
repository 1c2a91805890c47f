"""Snapshots and their tasks."""
