# make setup   create .venv and install everything a CPU machine needs (2 to 7 minutes)
# make demo    a robot moves: serial, pipelined and speculative (3 minutes after the setup)
# make test    the whole test suite (20 minutes on 2 cores)
# make check   lint, types, stubs
# make help    this list; PYTHON=/path/to/python3.13 chooses the Python of .venv
.PHONY: help setup demo test check
PYTHON ?= python3

help:
	@sed -n 's/^# //p' Makefile

setup: .venv/ready

.venv/ready: pyproject.toml client/pyproject.toml constraints/cpu.txt scripts/setup $(wildcard edgeflow/kernels/native/*.cpp edgeflow/kernels/native/*.h)
	PYTHON=$(PYTHON) scripts/setup

demo: setup
	.venv/bin/edgeflow demo

test: setup
	scripts/test

check: setup
	scripts/check
