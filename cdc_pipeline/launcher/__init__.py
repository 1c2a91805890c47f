"""The processes of an installation: described once, started natively or as containers."""
