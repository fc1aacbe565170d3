"""The scheduler: ``decide``, placement, and the leader's loop around them."""
