# The image of csi-local-lvm: the driver, and the programs that it runs. "make image" builds it, "make imagetest" builds and starts it without a registry.
#
# The bases are pinned by digest: it is of the index, so it holds for each architecture. To move a pin: "docker buildx imagetools inspect NAME:TAG", or the
# lists in https://github.com/docker-library/repo-info (repos/*/remote). Bookworm, because its LVM (2.03.16) is the one that the tests run with.
ARG GO_IMAGE=docker.io/library/golang:1.26.8-bookworm@sha256:f4191582e1522dfc5980a6bdc0309a756f9697f3e7d0f199c7e26fc82ab324fd
ARG BASE_IMAGE=docker.io/library/debian:bookworm-20260918-slim@sha256:3783cc01769c7b2b1b83a5c5ad96c815348e28ed7da68e2e3687004faa906251

# The driver is compiled on the machine that builds, for the one that is asked for. It is static: no emulation, no C compiler.
FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY pkg pkg
ARG TARGETOS=linux
ARG TARGETARCH
ARG VERSION=unknown
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /out/csi-local-lvm ./cmd/csi-local-lvm

FROM ${BASE_IMAGE}
# lvm2                        lvm; dmsetup for people who look
# thin-provisioning-tools     thin_dump and thin_delta; thin_check, which LVM runs when it activates a pool
# e2fsprogs, xfsprogs, btrfs-progs   mkfs and growing
# util-linux, mount           blkid, nsenter; mount for people: the driver mounts by itself
# kmod                        modprobe, which LVM runs for the targets of device-mapper
# The shell of the base is for this file and for people; the driver runs none.
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      lvm2 dmsetup thin-provisioning-tools e2fsprogs xfsprogs btrfs-progs util-linux mount kmod \
 && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* \
 && mkdir -p /csi /run/lvm /run/lock/lvm /var/lib/csi-local-lvm
COPY --from=build /out/csi-local-lvm /usr/local/bin/csi-local-lvm
COPY LICENSE /usr/share/doc/csi-local-lvm/LICENSE

ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="csi-local-lvm" \
      org.opencontainers.image.description="CSI driver for volumes that are LVM logical volumes on the node's own disks" \
      org.opencontainers.image.source="https://github.com/csi-local-lvm/csi-local-lvm" \
      org.opencontainers.image.documentation="https://github.com/csi-local-lvm/csi-local-lvm/tree/main/docs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"

# Root, because mount(2) and LVM want it. It writes nowhere but into what is mounted for it: the root can be read-only.
USER 0:0
ENTRYPOINT ["/usr/local/bin/csi-local-lvm"]
CMD ["serve"]
