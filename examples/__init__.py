"""Examples, one idea a file; each is run by a test."""
