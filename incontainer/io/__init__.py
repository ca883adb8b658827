"""Event loop, connections and lines, with the standard library only."""
