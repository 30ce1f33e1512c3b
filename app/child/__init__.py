"""Processes of the server's own that do what may take too long, too much, or a crash to do."""
