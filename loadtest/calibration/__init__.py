"""What a step takes on this machine, measured; and whether a simulation with it comes true."""
