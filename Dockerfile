# nibbled in a container. Targets: cpu (default builds and laptops), cuda (NVIDIA GPUs).
#   docker build --target cpu -t nibble:cpu .
#   docker run -p 50051:50051 -v "$PWD/models:/models:ro" nibble:cpu
# Data plane on 50051, metrics on 9464. The control plane stays on the container's loopback:
#   docker exec CONTAINER nibble load NAME PATH
ARG BASE=debian:12-slim
ARG CUDA_BASE=nvidia/cuda:13.0.0-devel-ubuntu24.04
ARG CUDA_RUNTIME_BASE=nvidia/cuda:13.0.0-runtime-ubuntu24.04

FROM ${BASE} AS builder
WORKDIR /src
COPY deploy/packages.sh deploy/packages.sh
COPY deploy/packages deploy/packages
RUN deploy/packages.sh build
COPY . .
RUN deploy/stage.sh OFF /stage

FROM ${CUDA_BASE} AS cuda-builder
WORKDIR /src
COPY deploy/packages.sh deploy/packages.sh
COPY deploy/packages deploy/packages
RUN deploy/packages.sh build
COPY . .
RUN deploy/stage.sh AUTO /stage

FROM ${CUDA_RUNTIME_BASE} AS cuda
COPY --from=cuda-builder /stage/packages.txt /usr/local/share/nibble/packages.txt
# hadolint ignore=DL3008 # the versions are those that the builder linked against, of the same release
RUN apt-get update \
 && xargs apt-get install -y --no-install-recommends < /usr/local/share/nibble/packages.txt \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin nibble \
 && install -d -o nibble /models
COPY --from=cuda-builder /stage/files/ /
USER 10001
EXPOSE 50051 9464
VOLUME /models
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["nibble", "health"]
ENTRYPOINT ["nibbled"]
CMD ["--weights-root=/models"]

FROM ${BASE} AS cpu
COPY --from=builder /stage/packages.txt /usr/local/share/nibble/packages.txt
# hadolint ignore=DL3008 # the versions are those that the builder linked against, of the same release
RUN apt-get update \
 && xargs apt-get install -y --no-install-recommends < /usr/local/share/nibble/packages.txt \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin nibble \
 && install -d -o nibble /models
COPY --from=builder /stage/files/ /
USER 10001
EXPOSE 50051 9464
VOLUME /models
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["nibble", "health"]
ENTRYPOINT ["nibbled"]
CMD ["--weights-root=/models"]
