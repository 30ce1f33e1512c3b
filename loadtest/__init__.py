"""Load tests and comparisons of policies; talks HTTP, or to the engine in virtual time."""
