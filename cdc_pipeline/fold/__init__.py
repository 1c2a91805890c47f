"""What a claim's events mean for the lake, without any I/O: the reference model and the arithmetic of claims."""
