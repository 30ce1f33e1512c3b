"""Where tokens are computed: real models, and the scripted and simulated stand-ins."""
