"""Data types without I/O: events, findings, incidents, configuration, catalogues, errors."""
