"""The tool table that both doors share."""
