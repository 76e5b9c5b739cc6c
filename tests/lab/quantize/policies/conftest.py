"""Prepares for the GL library that draws the frames of closed loops."""

from __future__ import annotations

import torch._dynamo  # noqa: F401 - others import it; with the LLVM of a GL library loaded first, its own crashes
