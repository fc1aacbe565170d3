"""``make fleet``: a day of a fleet on the real core (no broker), under streams from a stated distribution with a seed."""
