"""What runs inside a container: relay, agent host and client, standard library only."""
