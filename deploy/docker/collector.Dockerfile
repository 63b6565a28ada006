# The collector: no compiler, no root. Build in the repository's root:
#   docker build -f deploy/docker/collector.Dockerfile -t gpuledger-collector .
# Behind a proxy, with your own authority or index (all optional; nothing of it is in the image):
#   --build-arg HTTPS_PROXY=http://proxy:3128 --build-arg CA_CERTIFICATES="$(cat ca.pem)" --build-arg PIP_INDEX_URL=https://...
# Needs a database: GPULEDGER_DSN_FILE or GPULEDGER_DSN.
ARG PYTHON=3.11-slim-bookworm
FROM python:${PYTHON} AS build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG CA_CERTIFICATES
WORKDIR /src
RUN cp /etc/ssl/certs/ca-certificates.crt /opt/gpuledger-ca.pem && printf '%s\n' "$CA_CERTIFICATES" >> /opt/gpuledger-ca.pem
ENV PIP_CERT=/opt/gpuledger-ca.pem PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv --without-pip /opt/gpuledger
COPY requirements/collector.txt requirements/collector.txt
RUN python -m pip --python /opt/gpuledger install --no-compile --require-hashes --requirement requirements/collector.txt
COPY pyproject.toml README.md LICENSE ./
COPY common common
COPY agent agent
COPY collector collector
COPY alembic alembic
COPY dashboards dashboards
COPY examples examples
COPY docs/man docs/man
COPY deploy/completions deploy/completions
RUN python -m pip --python /opt/gpuledger install --no-compile --no-deps .
COPY deploy/docker/slim.py slim.py
RUN /opt/gpuledger/bin/python slim.py gpuledger_common gpuledger_agent gpuledger_collector
RUN /opt/gpuledger/bin/gpuledger --version

FROM python:${PYTHON}
RUN useradd --uid 10001 --user-group --create-home --home-dir /var/lib/gpuledger --shell /usr/sbin/nologin gpuledger
COPY --from=build /opt/gpuledger /opt/gpuledger
ENV PATH=/opt/gpuledger/bin:$PATH PYTHONUNBUFFERED=1 GPULEDGER_DATA_DIR=/var/lib/gpuledger
USER 10001:10001
WORKDIR /var/lib/gpuledger
EXPOSE 8440
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=4 CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8440/readyz', timeout=4)"]
ENTRYPOINT ["gpuledger"]
CMD ["serve", "--config", "/etc/gpuledger/collector.toml"]
