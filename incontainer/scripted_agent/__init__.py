"""An agent that runs a script instead of asking a model."""
