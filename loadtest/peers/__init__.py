"""The same work on other engines, side by side: `octavo bench-peers`."""
