"""Sitemaps and feeds, as lists of seeds."""
