"""Step-cost profiles: how long a step takes on some machine with some model."""

from loadtest.profiles.profile import Profile, find_profile

__all__ = ["Profile", "find_profile"]
