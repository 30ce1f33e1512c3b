"""How replies are spelled, one module a family of endpoints."""
