"""Step-cost profiles: how long a step takes on some machine with some model."""

from loadtest.profiles.document import to_json
from loadtest.profiles.finding import find_profile
from loadtest.profiles.profile import Observed, Profile

__all__ = ["Observed", "Profile", "find_profile", "to_json"]
