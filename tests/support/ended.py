"""Word of how a run of the tests ended, which tests/conftest.py leaves and .ci/run reads."""

ENDED = "octavo/ended"
"""Where pytest's cache has it."""

SOME_FAILED = "all ran, some failed"
