"""Load tests with Locust: a server of their own, users who read streams, and a report."""
