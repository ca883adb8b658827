"""Set-up of clients."""
