# A kind node with Gantry: the tree of base.sh, the programs, and the images in Gantry's own store. In a cell.
# $1: a folder of work, with `images` in it, $2: the tree, $3: folder of gantry, $4: folder of kubeadm and kubectl,
# $5: folder of crictl, $6: kubernetes' version
set -eu
work=$1 base=$2 own=$3 kubernetes=$4 tools=$5 version=$6
tree=$work/tree
cp -a --reflink=auto "$base" "$tree"
install -d "$tree/usr/lib/gantry" "$tree/etc/gantry"
for program in gantry gantry-monitor gantry-pause gantry-unpack; do
    install -m 0755 "$own/$program" "$tree/usr/lib/gantry/$program"
    strip "$tree/usr/lib/gantry/$program"
done
install -m 0755 "$kubernetes/kubeadm" "$kubernetes/kubectl" "$tree/usr/bin/"
install -m 0755 "$tools/crictl" "$tree/usr/local/bin/crictl"
# In place of kubelet and containerd, under every name that kind and kubeadm use.
for name in usr/bin/gantry usr/bin/kubelet usr/local/bin/ctr usr/local/bin/containerd \
    opt/cni/bin/bridge opt/cni/bin/host-local opt/cni/bin/loopback opt/cni/bin/portmap opt/cni/bin/ptp; do
    ln -sf /usr/lib/gantry/gantry "$tree/$name"
done
printf '%s' "$version" >"$tree/kind/version"
cp "$work/cni.yaml" "$tree/kind/manifests/default-cni.yaml"
cp "$work/storage.yaml" "$tree/kind/manifests/default-storage.yaml"
cat >"$tree/etc/gantry/runtime.toml" <<TOML
# kind tells kubeadm this path.
socket = "unix:///run/containerd/containerd.sock"
systemd_cgroup = true
TOML
cat >"$tree/etc/systemd/system/containerd.service" <<UNIT
# Under the name that kind looks for: logs of an export, restarts, the kubelet's --runtime-cgroups.
[Unit]
Description=Gantry container runtime
After=network.target local-fs.target dbus.service
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=/usr/bin/gantry runtime --config /etc/gantry/runtime.toml
Environment=GANTRY_LOG=info
TimeoutStartSec=10min
Restart=always
RestartSec=1
KillMode=process
Delegate=yes
OOMPolicy=continue
OOMScoreAdjust=-999
TasksMax=infinity
LimitNOFILE=infinity
LimitNPROC=infinity
LimitCORE=infinity

[Install]
WantedBy=multi-user.target
UNIT
install -d "$tree/etc/systemd/system/kubelet.service.d"
printf '[Unit]\nAfter=containerd.service\n' >"$tree/etc/systemd/system/kubelet.service.d/20-gantry.conf"
chroot "$tree" systemctl enable kubelet.service containerd.service undo-mount-hacks.service >/dev/null 2>&1
chroot "$tree" systemctl mask systemd-binfmt.service >/dev/null 2>&1

# The runtime itself loads the images, so that they lie in its store as it wants them.
mount --bind "$tree" "$tree"
mount -t proc proc "$tree/proc"
mount --rbind /dev "$tree/dev"
mount -t sysfs -o ro sysfs "$tree/sys"
mount --rbind /sys/fs/cgroup "$tree/sys/fs/cgroup"
mount -t tmpfs none "$tree/run"
mount -t tmpfs none "$tree/tmp"
mkdir "$tree/run/images"
mount --bind "$work/images" "$tree/run/images"
env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$tree" sh -eu -c '
    gantry runtime --socket unix:///run/containerd/containerd.sock &
    runtime=$!
    tries=0
    until crictl version >/dev/null 2>&1; do
        kill -0 "$runtime" && [ "$tries" -lt 600 ] || { echo "the runtime does not answer"; exit 1; }
        tries=$((tries + 1))
        sleep 0.1
    done
    for image in /run/images/*.tar; do
        ctr --namespace=k8s.io images import --all-platforms --digests --snapshotter=overlayfs - <"$image" >/dev/null
    done
    crictl images
    kill "$runtime"
    wait "$runtime"
'
for mounted in proc dev sys run/images run tmp; do
    umount --lazy --recursive "$tree/$mounted"
done
umount --lazy "$tree"
for root in $(awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts); do
    for made in gantry gantry-monitors; do
        [ ! -d "$root/$made" ] || find "$root/$made" -depth -type d -exec rmdir {} +
    done
done
# Of the folder itself, so that owners and extended attributes come along.
tar --create --file "$work/layer.tar" --directory "$tree" --numeric-owner --xattrs --xattrs-include='*' \
    --sort=name --one-file-system .
rm -rf "$tree"
