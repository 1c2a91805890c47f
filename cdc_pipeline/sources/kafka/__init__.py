"""Topics of a Kafka cluster as a source: finds the topics of tables and returns their records as lines."""
