# hydrantd, its client and its load generator in a container. The model is not in the image: mount it at /models,
# or a cache for models of the Hugging Face hub (docs/guide/models.md).
#
#   docker build -t hydrant .                  CPU
#   docker build -t hydrant:cuda --target cuda .
#   docker build -t hydrant:arm64 --platform linux/arm64 .
#
# For 64-bit ARM the programs are cross-compiled, and nothing runs but under qemu, which the build stage brings.
#
# Without a daemon: scripts/container-image. docs/guide/deploy.md says how to run it.

# Both can be named otherwise where no registry is in reach.
ARG BASE=debian:bookworm-slim
ARG BUILD_BASE=${BASE}
# amd64 or arm64: set by --platform.
ARG TARGETARCH
ARG CUDA_TOOLKIT=nvidia/cuda:13.0.2-devel-ubuntu22.04

# Structured output needs the sources of XGrammar: those that scripts/fetch-xgrammar has put into .cache/xgrammar, else it fetches
# them here; where it cannot, the image goes without.

# Packages of the image beside its base.
ARG RUNTIME_PACKAGES="ca-certificates libabsl20220623 libcurl4 libedit2 libfmt9 libgrpc++1.51 libhiredis0.14 libhwy1 libpcre2-8-0 \
    libprometheus-cpp-core1.0 libprotobuf32 libsentencepiece0 libspdlog1.10 libssl3 libutf8proc2 libyaml-cpp0.7 tini"

# The caches of apt have a name for each stage: stages may be built at the same time.

# ---- What builds -----------------------------------------------------------------------------------------------------

FROM --platform=$BUILDPLATFORM ${BUILD_BASE} AS tools
# Part of what ccache goes by.
ENV LANG=C.UTF-8
COPY scripts/setup /usr/local/share/hydrant/setup
RUN --mount=type=cache,id=hydrant-apt-build,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,id=hydrant-apt-lists-build,target=/var/lib/apt,sharing=locked \
    rm -f /etc/apt/apt.conf.d/docker-clean && apt-get update && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      $(bash /usr/local/share/hydrant/setup --list --runtime-of-demo) libsentencepiece-dev mold

FROM tools AS build-amd64
ARG PRESET=release
WORKDIR /src
COPY . .
RUN --mount=type=cache,id=hydrant-ccache,target=/root/.cache/ccache \
    { scripts/fetch-xgrammar || [ $? -eq 2 ]; } && \
    scripts/build --preset ${PRESET} --dir build/image --target hydrantd --target hydrant --target hydrant_load_program \
      -- -DHYDRANT_TESTS=OFF -DHYDRANT_BENCHMARKS=OFF && \
    cmake --install build/image --prefix /opt/hydrant --strip && \
    deploy/collect-licences /opt/hydrant/share/doc/hydrant

FROM tools AS build-arm64
ARG PRESET=release
ARG RUNTIME_PACKAGES
RUN --mount=type=cache,id=hydrant-apt-build-arm64,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,id=hydrant-apt-lists-build-arm64,target=/var/lib/apt,sharing=locked \
    bash /usr/local/share/hydrant/setup --aarch64
# The libraries and tini; with the certificates of the build stage, because no script of a package runs.
RUN mmdebstrap --variant=extract --architectures=arm64 --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
      --include="$(echo ${RUNTIME_PACKAGES} | tr ' ' ',')" bookworm /opt/runtime && \
    rm -rf /opt/runtime/usr/share/man /opt/runtime/usr/share/locale /opt/runtime/var /opt/runtime/dev /opt/runtime/etc && \
    mkdir -p /opt/runtime/etc/ssl && cp -a /etc/ssl/certs /opt/runtime/etc/ssl/
WORKDIR /src
COPY . .
RUN --mount=type=cache,id=hydrant-ccache,target=/root/.cache/ccache \
    { scripts/fetch-xgrammar || [ $? -eq 2 ]; } && \
    scripts/aarch64 --sysroot && \
    scripts/build --preset ${PRESET} --dir build/image --target hydrantd --target hydrant --target hydrant_load_program \
      -- -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DHYDRANT_TESTS=OFF -DHYDRANT_BENCHMARKS=OFF && \
    cmake --install build/image --prefix /opt/hydrant --strip && \
    deploy/collect-licences /opt/hydrant/share/doc/hydrant
# With the libraries of the image alone. The links, such as /lib, are the base's.
RUN qemu-aarch64 -L /opt/runtime /opt/hydrant/bin/hydrantd --version && \
    qemu-aarch64 -L /opt/runtime /opt/hydrant/bin/hydrant --help >/dev/null && \
    qemu-aarch64 -L /opt/runtime /opt/hydrant/bin/hydrant-load --help >/dev/null && \
    rm /opt/runtime/bin /opt/runtime/lib /opt/runtime/sbin

# ---- What runs -------------------------------------------------------------------------------------------------------

FROM ${BASE} AS runtime-amd64
ARG RUNTIME_PACKAGES
RUN --mount=type=cache,id=hydrant-apt-run,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,id=hydrant-apt-lists-run,target=/var/lib/apt,sharing=locked \
    rm -f /etc/apt/apt.conf.d/docker-clean && apt-get update && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ${RUNTIME_PACKAGES}

FROM ${BASE} AS runtime-arm64
COPY --from=build-arm64 /opt/runtime/ /

FROM runtime-${TARGETARCH} AS runtime
# Where the command line client, and with it the health check, find the daemon.
ENV HYDRANT_ADDRESS=127.0.0.1:50051
# gRPC; metrics and probes.
EXPOSE 50051 9464
# A number, so that Kubernetes can tell that it is not root.
USER 65532:65532
# NOT_SERVING while it loads and while it drains.
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=2 CMD ["hydrant", "health"]
ENTRYPOINT ["/usr/bin/tini", "--", "hydrantd"]
# Without TLS, on the container's own network: publish the port to 127.0.0.1, or give the flags of docs/guide/security.md.
CMD ["--model", "/models/model.gguf", "--listen", "0.0.0.0:50051", "--insecure", "--metrics-listen", "0.0.0.0:9464"]
LABEL org.opencontainers.image.title="Hydrant" \
      org.opencontainers.image.description="Serves language models over gRPC from a KV cache that evicts per head" \
      org.opencontainers.image.licenses="Apache-2.0"

FROM runtime AS cpu-amd64
COPY --from=build-amd64 /opt/hydrant /usr/local
# A library that the list above has forgotten ends the build, not the first start.
RUN hydrantd --version && hydrant --help >/dev/null && hydrant-load --help >/dev/null

FROM runtime AS cpu-arm64
COPY --from=build-arm64 /opt/hydrant /usr/local

FROM cpu-${TARGETARCH} AS cpu

# ---- The same with the CUDA backend: builds without a GPU, runs where the NVIDIA container toolkit is -------------------

FROM ${CUDA_TOOLKIT} AS cuda-toolkit

FROM tools AS build-cuda
COPY --from=cuda-toolkit /usr/local/cuda-13.0/ /usr/local/cuda-13.0/
ENV PATH=/usr/local/cuda-13.0/bin:$PATH
WORKDIR /src
COPY . .
ARG PRESET=release
ARG CUDA_ARCHITECTURES="80-real;90a-real;100-real;90-virtual"
RUN --mount=type=cache,id=hydrant-ccache,target=/root/.cache/ccache \
    { scripts/fetch-xgrammar || [ $? -eq 2 ]; } && \
    { scripts/fetch-sm90-attention || [ $? -eq 2 ]; } && \
    scripts/build --preset ${PRESET} --dir build/image --target hydrantd --target hydrant --target hydrant_load_program \
      --target hydrant_cuda -- -DHYDRANT_TESTS=OFF -DHYDRANT_BENCHMARKS=OFF \
      "-DHYDRANT_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES}" && \
    cmake --install build/image --prefix /opt/hydrant --strip && \
    cp --dereference /usr/local/cuda-13.0/targets/x86_64-linux/lib/libcublasLt.so.13 /opt/hydrant/lib/ && \
    deploy/collect-licences /opt/hydrant/share/doc/hydrant

FROM runtime AS cuda
# What the NVIDIA container toolkit looks for.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/hydrant /usr/local
# The module's libraries are all here, but for the driver's, which the container toolkit brings.
RUN hydrantd --version && hydrant --help >/dev/null && hydrant-load --help >/dev/null && \
    ldd /usr/local/lib/libhydrant_cuda.so >/tmp/libraries && ! grep "not found" /tmp/libraries && rm /tmp/libraries

# ---- The default -----------------------------------------------------------------------------------------------------

FROM cpu
