"""Contract with clients and agents, declared once: parameters of tools, schemas, validation."""
