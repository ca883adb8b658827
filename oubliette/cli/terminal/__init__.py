"""Input and output of the command line: values, listings, progress, logs."""
