"""Command `oubliette run`: one task for an agent, from a checkout to the diff."""
