"""Queries about pages, hosts and domains (importance, top, history, explain, inflow), answered from replicas."""
