#!/bin/sh
# Install this tree in the environment of an image.
set -eu
# The tools that make the wheels are the tested ones.
PIP_CONSTRAINT=constraints/cpu.txt PIP_BUILD_CONSTRAINT=constraints/cpu.txt pip install --no-deps ./client .
edgeflow config schema > /dev/null
cd / # so that the installed package is imported, not the tree
python -m edgeflow.kernels.native.build
library=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# Of the laboratory stays what `edgeflow verify`, `tune`, `policy check` and `doctor` import.
(cd "$library/edgeflow/lab" && rm -r demo gpu kv260 quantize sim)
# Compiled without times, so that two builds are equal; a read-only image could not compile later. Some packages hold
# files for newer Pythons, which do not compile.
python -m compileall -qf --invalidation-mode unchecked-hash "$library/edgeflow" "$library/edgeflow_client"
python -m compileall -qqf --invalidation-mode unchecked-hash "$library" || true
