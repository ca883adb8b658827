"""What the command line reads and writes: values, listings, progress, logs."""
