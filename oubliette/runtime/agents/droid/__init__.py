"""Factory's Droid."""
