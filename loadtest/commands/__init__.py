"""The commands of `octavo` that this package registers, one a module."""
