# Bases without NVIDIA's parts, for scripts/build-image --base: they prove a Dockerfile where no registry answers, and are
# not for use. Targets: cuda; jetson, with a torch for CPUs that names a CUDA.
ARG BASE=debian:bookworm
FROM ${BASE} AS cuda
LABEL edgeflow.stand-in="no CUDA"
ARG CUDA=13.0
# nvcc and ptxas that know their version and nothing else.
RUN mkdir -p /usr/local/cuda/bin && cd /usr/local/cuda/bin \
    && printf '#!/bin/sh\necho "a stand-in of edgeflow for CUDA, release %s"\n[ "$1" = --version ]\n' "$CUDA" > nvcc \
    && cp nvcc ptxas && chmod 755 nvcc ptxas

FROM cuda AS jetson
LABEL edgeflow.stand-in="no L4T, no CUDA, torch for CPUs"
ARG CUDA
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-pip \
    && apt-get clean && rm -rf /var/lib/apt/lists/*
COPY constraints/cpu.txt /tmp/
# hadolint ignore=DL3013
RUN grep ^torch== /tmp/cpu.txt > /tmp/torch.txt \
    && pip install --break-system-packages --no-cache-dir -r /tmp/torch.txt \
    && echo "cuda = '$CUDA'" >> "$(python3 -c 'import torch.version; print(torch.version.__file__)')"
