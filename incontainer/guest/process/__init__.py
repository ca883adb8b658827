"""The processes that the guest runs, and their streams."""
