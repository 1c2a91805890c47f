"""A MariaDB or MySQL server as a source: its binary log is the stream; a consistent snapshot copies its tables."""
