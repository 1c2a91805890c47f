"""The stored state of one installation, and the addresses of its servers."""
