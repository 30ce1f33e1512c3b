"""Requests as they come over the wire, checked."""
