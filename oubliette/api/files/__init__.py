"""Files of a workspace for programs: single ones, and whole folders to and from this machine."""
