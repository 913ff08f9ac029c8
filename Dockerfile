# syntax=docker/dockerfile:1
# docker build -t ingestor .                 for CPUs
# docker build -t ingestor:gpu --target gpu --build-arg TORCH_INDEX=https://pypi.org/simple .
#
# The compose file beside this one runs it as it should be: beside Qdrant, read-only, with enough shared memory.

FROM python:3.12-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/ingestor
ENV PATH=/opt/ingestor/bin:$PATH
WORKDIR /src
# The version of torch is the one in constraints.txt; for CUDA it comes from PyPI, for CPUs, smaller, from here.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Others: openvino (encoder.runtime, precision int8), onnx. What is given takes the place of all of these.
ARG EXTRAS=quickstart,html,http,s3,gcs,azure
# Dependencies are a layer of their own: a change of the code does not fetch them again.
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY ingestor/__init__.py ingestor/
RUN pip install -c constraints.txt --extra-index-url "$TORCH_INDEX" ".[$EXTRAS]"
COPY ingestor ingestor
RUN pip install --no-deps --force-reinstall .

FROM python:3.12-slim AS cpu
# A user of its own; the folders that volumes are laid over belong to it, so new volumes do, too.
RUN useradd --uid 10001 --create-home ingestor \
    && install -d -o 10001 /app /app/.ingestor /app/metrics /models
COPY --from=build /opt/ingestor /opt/ingestor
COPY configs /app/configs
COPY deploy/again.sh /app/deploy/again.sh
WORKDIR /app
ENV PATH=/opt/ingestor/bin:$PATH HF_HOME=/models PYTHONUNBUFFERED=1
USER 10001:10001
# Exec form: signals reach the run itself, which writes what is packed. Stopping waits longer than --drain-timeout.
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "ingestor"]
CMD ["--help"]

FROM cpu AS gpu
# encoder.compile builds its kernels with a compiler, in /tmp.
USER 0
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
USER 10001:10001
ENV TRITON_HOME=/tmp TORCHINDUCTOR_CACHE_DIR=/tmp/inductor

# What is built when no target is named.
FROM cpu
