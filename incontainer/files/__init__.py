"""Program that works on files of a workspace for the server, as the agents' user."""
