"""An event loop, connections and lines, of the standard library alone."""
