"""Calls of tools: how they are offered to a model, demanded of it, and read from what it says."""
