"""Online detectors: pure, event time only, one a file; the list is in registry.py."""
