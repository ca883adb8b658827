"""`oubliette doctor`: whether this machine can run what is configured."""
