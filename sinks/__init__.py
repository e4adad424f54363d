"""Where incidents go: Alertmanager, archive, console, hooks."""
