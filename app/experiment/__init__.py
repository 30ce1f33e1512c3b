"""Live switchback experiments: policies take turns on one engine, and what each did is compared."""
