# make setup     create .venv and install everything a CPU machine needs (2 to 7 minutes)
# make demo      a robot moves: serial, pipelined and speculative (3 minutes after the setup)
# make test      tests of what serves: SDK, service, policies, kernels
# make test-all  these, and the tests of the laboratory, benchmarks, fuzzing, releases, accelerator and documentation site
# make check     lint, types, stubs, and the documentation as a site
# make docs      the documentation as a site, which a service shows at /docs
# make help      this list; PYTHON=/path/to/python3.13 chooses the Python of .venv
.PHONY: help setup demo test test-all check docs
PYTHON ?= python3
NOT_SERVING = tests/lab tests/benchmarks tests/fuzz tests/deploy/kv260 tests/service/site tests/releases

help:
	@sed -n 's/^# //p' Makefile

setup: .venv/ready

.venv/ready: pyproject.toml client/pyproject.toml constraints/cpu.txt scripts/setup $(wildcard edgeflow/kernels/native/*.cpp edgeflow/kernels/native/*.h)
	PYTHON=$(PYTHON) scripts/setup

demo: setup
	.venv/bin/edgeflow demo

test: setup
	scripts/test $(NOT_SERVING:%=--ignore=%)

test-all: setup
	scripts/test

check: setup
	scripts/check

docs: setup
	scripts/docs
