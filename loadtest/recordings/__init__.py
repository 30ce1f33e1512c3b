"""Recordings of a server, decided again: exactly, or as a trace under another policy."""
