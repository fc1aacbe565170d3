"""What Magnetar's services share: the bus, the registry's clients, the state and its ``evolve``, settings, health."""

from magnetar_events import __version__

__all__ = ["__version__"]
