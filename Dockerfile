# mqnotify, static and without a shell:
#
#   docker build -t mqnotify --build-arg VERSION="$(git describe --tags --always)" .
#   docker run --rm -e MQNOTIFY_DSN mqnotify demo
#   docker run --rm -e MQNOTIFY_DSN mqnotify consume orders --group mailer
FROM golang:1.26 AS build
WORKDIR /src
ENV GOWORK=off
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION
RUN CGO_ENABLED=0 go build -trimpath -ldflags="-s -w -X main.released=$VERSION" -o /mqnotify ./cmd/mqnotify

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /mqnotify /mqnotify
USER 65532:65532
ENTRYPOINT ["/mqnotify"]
