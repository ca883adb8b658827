"""Methods with each option by name, written by .ci/api_signatures.py."""
