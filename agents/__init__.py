"""What runs on a node: readers, loop, spool, producer. Imports nothing heavy."""
