"""Read-only HTTP for git's clients: `git clone` and `git fetch` of projects, with a key."""
