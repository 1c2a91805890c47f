"""Folders of event files as a source: which files there are, and which lines are complete."""
