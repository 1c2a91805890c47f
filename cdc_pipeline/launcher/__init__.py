"""The processes of an installation, described once: native launcher and compose file."""
