"""The version of the server's distribution, apart from the names that `import edgeflow` offers to notebooks."""

__version__ = "0.2.0"
