# syntax=docker/dockerfile:1
# edgeflow on a PC or server with an NVIDIA GPU (driver 580 or newer):
#   docker build -t edgeflow .
#   docker run --rm --gpus all --network host --read-only --tmpfs /tmp -v edgeflow-cache:/var/cache/edgeflow edgeflow
# and on a computer without one, with Debian 12 or 13, or with --build-arg CPU_BASE=ubuntu:24.04:
#   docker build --target cpu -t edgeflow:cpu .
#   docker run --rm --network host --read-only --tmpfs /tmp -v edgeflow-cache:/var/cache/edgeflow edgeflow:cpu
ARG CPU_BASE=debian:bookworm-slim
ARG CUDA_DEVEL=nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:5dc1bca23d05bd37b011be68ec470c03b403a5da07ec3a86e41af9470e9d0cc6
ARG CUDA_BASE=nvidia/cuda:13.0.2-base-ubuntu24.04@sha256:2ab6381d970b211fb93853796dc6707eb8a72575a375c422b17cf4d8b2641701

FROM ${CPU_BASE} AS cpu-build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates g++ python3-dev python3-venv \
    && apt-get clean && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/edgeflow
ENV PATH=/opt/edgeflow/bin:$PATH
WORKDIR /src
COPY constraints/cpu-image.txt constraints/cpu.txt constraints/
# PyTorch's own index has the wheels without CUDA. Headers, tests and compilers are of no use to a service.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-deps --require-hashes -r constraints/cpu-image.txt \
    && grep ^torch== constraints/cpu.txt > /tmp/torch.txt \
    && pip install --no-deps ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -r /tmp/torch.txt \
    && python -c "import torch; assert torch.version.cuda is None, 'torch with CUDA: set TORCH_INDEX to an index without'" \
    && cd "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch" \
    && rm -rf include share test && find bin -type f ! -name torch_shm_manager -delete
COPY constraints/docs-cpu-image.txt constraints/
RUN python3 -m venv /opt/docs && /opt/docs/bin/pip install --no-deps --require-hashes -r constraints/docs-cpu-image.txt
COPY . .
RUN PYTHON=/opt/docs/bin/python scripts/docs
RUN deploy/install.sh

FROM ${CPU_BASE} AS cpu
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/ldconfig \
    && groupadd --gid 10001 edgeflow \
    && useradd --uid 10001 --gid edgeflow --home-dir /var/cache/edgeflow --shell /usr/sbin/nologin edgeflow \
    && install -d -o edgeflow -g edgeflow /var/cache/edgeflow \
    && install -d /etc/edgeflow && echo '{}' > /etc/edgeflow/config.json
COPY --from=cpu-build /opt/edgeflow /opt/edgeflow
ENV PATH=/opt/edgeflow/bin:$PATH \
    HOME=/var/cache/edgeflow \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/cache/edgeflow
VOLUME /var/cache/edgeflow
EXPOSE 50051 8000 8002
HEALTHCHECK --start-period=900s --interval=30s --timeout=10s --retries=3 \
    CMD ["edgeflow", "health", "--config", "/etc/edgeflow/config.json"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["edgeflow"]
CMD ["serve", "--config", "/etc/edgeflow/config.json"]

FROM ${CUDA_DEVEL} AS build
# Ubuntu keeps only its newest builds: a pinned one could not be had for long.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3-dev python3-venv \
    && apt-get clean && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/edgeflow
ENV PATH=/opt/edgeflow/bin:$PATH
WORKDIR /src
COPY constraints/cuda.txt constraints/
RUN pip install --no-deps --require-hashes -r constraints/cuda.txt
# FlashInfer's kernels for the GPUs named here; others compile theirs at first use, where there is an nvcc.
ARG ARCHITECTURES="8.0 8.6 8.9 9.0 12.0"
ARG FLASHINFER=1
COPY deploy/build_flashinfer.py deploy/
RUN if [ "$FLASHINFER" = 1 ]; then \
        FLASHINFER_CUDA_ARCH_LIST=$ARCHITECTURES FLASHINFER_WORKSPACE_BASE=/tmp/flashinfer \
            python deploy/build_flashinfer.py && rm -rf /tmp/flashinfer; \
    else pip uninstall --yes flashinfer-python; fi
# What writes the documentation, for /docs of a service, stays in this stage.
COPY constraints/docs-cuda.txt constraints/
RUN python3 -m venv /opt/docs && /opt/docs/bin/pip install --no-deps --require-hashes -r constraints/docs-cuda.txt
COPY . .
RUN PYTHON=/opt/docs/bin/python scripts/docs
RUN deploy/install.sh

FROM ${CUDA_BASE}
# gcc and Python's headers: Triton compiles a small launcher for each kernel.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3 python3-dev \
    && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/ldconfig \
    && groupadd --gid 10001 edgeflow \
    && useradd --uid 10001 --gid edgeflow --home-dir /var/cache/edgeflow --shell /usr/sbin/nologin edgeflow \
    && install -d -o edgeflow -g edgeflow /var/cache/edgeflow \
    && install -d /etc/edgeflow && echo '{}' > /etc/edgeflow/config.json
COPY --from=build /opt/edgeflow /opt/edgeflow
ENV PATH=/opt/edgeflow/bin:$PATH \
    HOME=/var/cache/edgeflow \
    TRITON_CACHE_DIR=/var/cache/edgeflow/triton \
    FLASHINFER_WORKSPACE_BASE=/var/cache/edgeflow \
    CUDA_CACHE_PATH=/var/cache/edgeflow/cuda \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /var/cache/edgeflow
VOLUME /var/cache/edgeflow
EXPOSE 50051 8000 8002
# Loading and warming up a 7B model takes minutes; the service itself gives up after timing.worker_start_s, 900.
HEALTHCHECK --start-period=900s --interval=30s --timeout=10s --retries=3 \
    CMD ["edgeflow", "health", "--config", "/etc/edgeflow/config.json"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["edgeflow"]
CMD ["serve", "--config", "/etc/edgeflow/config.json"]
