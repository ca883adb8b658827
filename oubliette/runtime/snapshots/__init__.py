"""Snapshots of workspaces, in git repositories that no container sees."""
