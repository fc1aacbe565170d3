"""The agent beside an inference server."""
