"""Policies compared on the same requests, with honest statistics."""
