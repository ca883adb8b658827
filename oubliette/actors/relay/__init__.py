"""The relay connections of one container: its SocketActor, and an actor for each session."""
