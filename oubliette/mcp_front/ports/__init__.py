"""Ports of containers for browsers: host names, who is let in, and the bytes both ways."""
