# The agent: four small dependencies, no root. Build in the repository's root:
#   docker build -f deploy/docker/agent.Dockerfile -t gpuledger-agent .
# NVML comes with the driver: run it with the NVIDIA runtime and NVIDIA_DRIVER_CAPABILITIES=utility.
ARG PYTHON=3.11-slim-bookworm
FROM python:${PYTHON} AS build
WORKDIR /src
COPY requirements/agent.txt requirements/agent.txt
RUN python -m venv /opt/gpuledger
RUN /opt/gpuledger/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --requirement requirements/agent.txt
COPY pyproject.toml README.md LICENSE ./
COPY common common
COPY agent agent
COPY collector collector
COPY alembic alembic
RUN /opt/gpuledger/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps .
RUN rm -r /opt/gpuledger/lib/python3*/site-packages/gpuledger_collector /opt/gpuledger/bin/gpuledger
RUN /opt/gpuledger/bin/gpuledger-agent --help

FROM python:${PYTHON}
RUN useradd --uid 10001 --user-group --create-home --home-dir /var/lib/gpuledger-agent --shell /usr/sbin/nologin gpuledger
COPY --from=build /opt/gpuledger /opt/gpuledger
ENV PATH=/opt/gpuledger/bin:$PATH PYTHONUNBUFFERED=1 GPULEDGER_AGENT_SPOOL_DIR=/var/lib/gpuledger-agent/spool GPULEDGER_AGENT_METRICS_LISTEN=0.0.0.0:9440 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=utility
USER 10001:10001
WORKDIR /var/lib/gpuledger-agent
EXPOSE 9440
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=4 CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9440/metrics', timeout=4)"]
ENTRYPOINT ["gpuledger-agent"]
CMD ["run"]
