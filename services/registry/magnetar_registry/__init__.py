"""The registry service: keeps the registry topic healthy, and answers look-ups over HTTP."""
