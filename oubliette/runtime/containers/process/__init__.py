"""Container runtime without an engine: bubblewrap, or no isolation at all."""
