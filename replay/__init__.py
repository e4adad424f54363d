"""Recorded events through the same pipeline: reader, scoring, report."""
