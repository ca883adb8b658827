"""Configuration: its schema, its sources, and the options of containers and agents."""
