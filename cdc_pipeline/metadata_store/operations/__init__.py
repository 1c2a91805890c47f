"""What rewind, rebuild, retention and removal read and write in the metadata store."""
