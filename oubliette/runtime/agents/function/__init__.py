"""An agent that is one function of a Python program."""
