"""Keys, scopes and rate limits."""
