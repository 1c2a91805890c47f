"""Makes the source ready, registers it, and opens the consumer that reads it from the registered offsets."""
