"""The parts, in the order in which they are run."""
