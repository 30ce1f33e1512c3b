"""What runs in another engine's environment, as scripts: nothing here imports what it may lack."""
