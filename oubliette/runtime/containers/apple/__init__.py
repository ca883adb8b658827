"""Container runtime on Apple's `container`."""
