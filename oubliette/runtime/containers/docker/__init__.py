"""The container runtime on engines that speak the Docker API: docker and podman."""
