"""Repositories of projects: clones of what a URL or a folder has, and workspaces made of them."""
