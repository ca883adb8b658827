"""The relay connections of one container: the SocketActor and a LinkActor for each session link."""
