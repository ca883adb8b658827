"""Container runtime on engines with the Docker API: docker and podman."""
