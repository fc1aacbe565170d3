"""The command groups, one a file."""
