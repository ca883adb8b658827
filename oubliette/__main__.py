"""`python -m oubliette`."""

from oubliette.cli.main import run

if __name__ == "__main__":
    run()
