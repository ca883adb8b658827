"""The process that runs agents in a container and relays their connections."""
