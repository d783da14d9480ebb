# Debian with what a kind node needs, and kind's own files, as a folder; the same steps as kind's base image. In a mount
# namespace of its own.
# $1: the folder, $2: keyring, $3: suite, $4: Debian's address, $5: images/base/files of kind's module
set -eu
tree=$1 keyring=$2 suite=$3 mirror=$4 files=$5
packages=systemd,systemd-sysv,dbus,conntrack,iptables,nftables,iproute2,ethtool,util-linux,mount,kmod,e2fsprogs
packages=$packages,bash,ca-certificates,curl,jq,procps,socat,iputils-ping
mount --make-rprivate /
debootstrap --variant=minbase --keyring="$keyring" --include="$packages" "$suite" "$tree" "$mirror"

# Units that a container must not start.
find "$tree/lib/systemd/system/sysinit.target.wants/" -name systemd-tmpfiles-setup.service -delete
for unwanted in "$tree"/lib/systemd/system/multi-user.target.wants/* "$tree"/etc/systemd/system/*.wants/* \
    "$tree"/lib/systemd/system/local-fs.target.wants/* "$tree"/lib/systemd/system/sockets.target.wants/*udev* \
    "$tree"/lib/systemd/system/sockets.target.wants/*initctl* "$tree"/lib/systemd/system/basic.target.wants/*; do
    rm -f "$unwanted"
done
echo ReadKMsg=no >>"$tree/etc/systemd/journald.conf"

# Go's module cache keeps no modes.
for folder in etc kind; do
    (cd "$files" && find "$folder" -type f -exec install -D -m 0644 {} "$tree/{}" \;)
done
chmod 0755 "$tree"/kind/bin/*
install -D -m 0755 "$files/usr/local/bin/entrypoint" "$tree/usr/local/bin/entrypoint"
rm -f "$tree/etc/systemd/system/containerd-fuse-overlayfs.service"
mkdir -p "$tree/etc/kubernetes/manifests" "$tree/kind/manifests" "$tree/kind/images" "$tree/opt/cni/bin" \
    "$tree/etc/cni/net.d"
rm -rf "$tree/var/cache/apt/archives"/*.deb "$tree/var/lib/apt/lists"/* "$tree/var/log"/*.log \
    "$tree/usr/share/doc" "$tree/usr/share/man" "$tree/usr/share/locale"
: >"$tree/etc/machine-id"
