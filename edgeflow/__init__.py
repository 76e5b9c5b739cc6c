"""edgeflow: a robot-control inference service."""

__version__ = "0.1.0"
