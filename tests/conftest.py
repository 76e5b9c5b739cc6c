"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import settings

# Speed is measured in benchmarks; a deadline here would only tell how busy the machine is.
settings.register_profile("edgeflow", deadline=None)
settings.load_profile("edgeflow")
