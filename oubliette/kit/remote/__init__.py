"""Actors of other nodes: the transport port, and what makes a ref reach beyond its System."""
