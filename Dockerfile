# docker build -t mmkcr . && docker run mmkcr   (`make quickstart`; `docker run mmkcr make test`)
FROM python:3.11-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends libgl1 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /mmkcr
COPY . .
CMD ["make", "quickstart"]
