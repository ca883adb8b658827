"""The domain actors."""
