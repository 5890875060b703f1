"""Serving engines by name and era; each entry names its sources."""
