"""What users need to test against Oubliette."""
