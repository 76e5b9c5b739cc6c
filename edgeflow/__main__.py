"""`python -m edgeflow`: the command line."""

from edgeflow.cli import main

main()
