"""Texts that accuracy is measured on, each with its source and its free licence."""
