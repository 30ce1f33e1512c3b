"""Spans for OpenTelemetry: one for each request for tokens, made when it has ended."""
