"""Command `oubliette serve`: a server, alone or as a node of a cluster."""
