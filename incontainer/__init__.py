"""Programs that run inside a container: guest, relay and client, with the standard library only."""
