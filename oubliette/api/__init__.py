"""The API for Python programs, in process or over the wire; programs import it from `oubliette`."""
