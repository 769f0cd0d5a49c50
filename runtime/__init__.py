"""Requests in, tokens out: the engine that schedules, runs the model and samples."""
