"""Files and folders of the server's home."""
