"""What a claim's events mean for the lake, without any I/O: the reference that the lake is held to."""
