"""The container runtime on Apple's `container`."""
