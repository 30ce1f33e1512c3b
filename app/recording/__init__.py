"""Recordings: what the engine was given, in files from which it can be decided again."""
