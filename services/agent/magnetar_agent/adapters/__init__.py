"""One interface to every kind of inference server."""
