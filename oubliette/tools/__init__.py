"""Tools of the server, which all transports share."""
