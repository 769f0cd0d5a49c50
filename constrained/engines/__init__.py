"""Engines behind `grammar.py`: llguidance, an outlines-core index, choices over bytes, and what wraps or drives them."""
