# docker compose run --rm ingestor --config configs/wiki.yaml
FROM python:3.12-slim

RUN useradd --create-home ingestor
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY ingestor ingestor
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url "$TORCH_INDEX" ".[quickstart]"
COPY configs configs
RUN install -d -o ingestor .ingestor
USER ingestor

# Signals reach the main process, which drains; give it longer than --drain-timeout before it is killed.
ENTRYPOINT ["python", "-m", "ingestor"]
