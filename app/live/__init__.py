"""The engine as people watch it: one document for all viewers, made only while somebody looks."""
