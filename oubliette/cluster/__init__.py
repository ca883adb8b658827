"""A cluster of nodes on Ray: place, start, notice of death and transport; only here is ray used."""
