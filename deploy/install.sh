#!/bin/sh
# Install this tree in the environment of an image: deploy/install.sh [FOLDER OF edgeflow/lab TO LEAVE OUT]...
set -eu
pip install --no-deps ./client .
edgeflow config schema > /dev/null
cd / # so that the installed package is imported, not the tree
python -m edgeflow.kernels.native.build
library=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for folder; do
    rm -r "$library/edgeflow/lab/$folder"
done
# Compiled without times, so that two builds are equal; a read-only image could not compile later. Some packages hold
# files for newer Pythons, which do not compile.
python -m compileall -qf --invalidation-mode unchecked-hash "$library/edgeflow" "$library/edgeflow_client"
python -m compileall -qqf --invalidation-mode unchecked-hash "$library" || true
