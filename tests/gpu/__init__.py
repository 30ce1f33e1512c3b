"""What a machine with a GPU is asked in a few minutes, and what travels there."""
