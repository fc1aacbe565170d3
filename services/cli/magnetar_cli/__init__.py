"""The ``magnetar`` command."""
