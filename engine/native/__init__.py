"""A step on the CPU in one call of C++: int8 products, paged attention, all layers, no GIL."""
