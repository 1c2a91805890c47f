"""What people do to a running pipeline: verify, repair, replay, rewind, rebuild, maintain, clean, remove."""
