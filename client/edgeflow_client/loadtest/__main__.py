"""`edgeflow-loadtest`, and `python -m edgeflow_client.loadtest`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the load test; one line where its libraries are not installed."""
    try:
        from edgeflow_client.loadtest import options
    except ModuleNotFoundError as error:
        advice = "in a clone of edgeflow: pip install './client[loadtest]'"
        sys.exit(f"edgeflow-loadtest: {error.name} is not installed; {advice}")
    options.main()


if __name__ == "__main__":
    main()
