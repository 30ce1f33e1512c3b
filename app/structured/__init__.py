"""Structured outputs: from what a request asks for to grammars that the engine follows."""
