# make setup   create .venv and install everything a CPU machine needs
# make demo    a robot moves: serial, pipelined and speculative, in at most 4 minutes
# make test    the whole test suite
# make check   lint, types, stubs
.PHONY: setup demo test check
PYTHON ?= python3

setup: .venv/ready

.venv/ready: pyproject.toml constraints/cpu.txt scripts/setup $(wildcard edgeflow/kernels/native/*.cpp edgeflow/kernels/native/*.h)
	PYTHON=$(PYTHON) scripts/setup

demo: setup
	.venv/bin/edgeflow demo

test: setup
	scripts/test

check: setup
	scripts/check
