"""Shadow policies: what others would have done with the traffic of late, in virtual time."""
