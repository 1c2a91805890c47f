"""Sources: decoders of change streams and of table copies, apart from the transports that bring the bytes."""
