"""Which pages hold which prefix. Standard library only; knows tokens and pages, no model and no request."""
