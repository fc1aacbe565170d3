"""The projector: the log as tables, and everything that can be asked of the past."""
