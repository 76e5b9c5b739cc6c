"""edgeflow-client: a robot's side of edgeflow."""

__version__ = "0.1.0"
