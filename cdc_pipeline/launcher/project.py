"""Paths in the checkout that this package is installed from."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
CACHE = PROJECT / ".cache"
JARS = CACHE / "jars"
JARS_LOCK = PROJECT / "jars.lock"
VENV = PROJECT / ".venv"
