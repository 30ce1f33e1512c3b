"""Models: their configuration, their files, their forward pass."""
