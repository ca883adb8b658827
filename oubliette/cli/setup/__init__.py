"""Set-up of a home, and of its clients."""
