"""The scripted agent, which needs no model."""
