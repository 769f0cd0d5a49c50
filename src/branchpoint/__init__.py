"""Branchpoint: a structured-generation language and runtime for language models."""
