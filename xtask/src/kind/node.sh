# A kind node: the tree of base.sh, the programs, and the images in the runtime's own store. In a cell.
# $1: a folder of work, with `images` and `runtime.sh` in it, $2: the tree, $3: folder of gantry, $4: folder of kubeadm,
# kubectl and upstream's kubelet, $5: folder of crictl, $6: kubernetes' version, $7: folder of containerd and runc
set -eu
work=$1 base=$2 own=$3 kubernetes=$4 tools=$5 version=$6 peers=$7
tree=$work/tree
cp -a --reflink=auto "$base" "$tree"
. "$work/runtime.sh"
install -m 0755 "$kubernetes/kubeadm" "$kubernetes/kubectl" "$tree/usr/bin/"
install -m 0755 "$tools/crictl" "$tree/usr/local/bin/crictl"
printf '%s' "$version" >"$tree/kind/version"
cp "$work/cni.yaml" "$tree/kind/manifests/default-cni.yaml"
cp "$work/storage.yaml" "$tree/kind/manifests/default-storage.yaml"
install -d "$tree/etc/systemd/system/kubelet.service.d"
printf '[Unit]\nAfter=containerd.service\n' >"$tree/etc/systemd/system/kubelet.service.d/20-containerd.conf"
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
    $1 >/tmp/runtime.log 2>&1 &
    runtime=$!
    tries=0
    until crictl version >/dev/null 2>&1; do
        kill -0 "$runtime" && [ "$tries" -lt 600 ] || { tail -n 20 /tmp/runtime.log; exit 1; }
        tries=$((tries + 1))
        sleep 0.1
    done
    for image in /run/images/*.tar; do
        ctr --namespace=k8s.io images import --all-platforms --digests --snapshotter=overlayfs - <"$image" >/dev/null
    done
    crictl images
    kill "$runtime"
    wait "$runtime" || [ $? = 143 ]
' sh "$serve"
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
