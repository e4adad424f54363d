"""Findings to incidents: placement, topology, attachment, root ranking. Pure."""
