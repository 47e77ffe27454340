"""Processes that consume; each one thin."""
