"""Scheduling policies, one a file, and the contract they share (`policies.base`)."""
