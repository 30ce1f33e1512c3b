"""Guesses by a draft model: a smaller one that has the vocabulary of the one that is served."""
