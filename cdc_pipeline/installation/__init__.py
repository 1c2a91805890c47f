"""What one installation remembers between runs, and where its servers are."""
