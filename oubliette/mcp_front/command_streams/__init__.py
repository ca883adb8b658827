"""Commands in containers for clients that attach to them over HTTP."""
