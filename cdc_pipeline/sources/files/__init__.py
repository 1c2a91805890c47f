"""A folder of event files as a source: finds the files and returns their complete lines."""
