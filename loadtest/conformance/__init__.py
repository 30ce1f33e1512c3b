"""Whether a policy keeps its word: random workloads, watched invariants, and a verdict."""
