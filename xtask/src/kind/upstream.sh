# Upstream's kubelet, containerd, runc and CNI plugins, with kind's own configuration of containerd. Sourced by node.sh;
# says how the runtime is started.
install -m 0755 "$kubernetes/kubelet" "$tree/usr/bin/kubelet"
install -m 0755 "$peers/containerd" "$peers/containerd-shim-runc-v2" "$peers/ctr" "$peers/runc" "$tree/usr/local/bin/"
install -m 0755 "$peers"/cni/* "$tree/opt/cni/bin/"
# kubeadm's pause image is the one that lies in the store.
sed -i "s|registry.k8s.io/pause:[0-9.]*|$pause|" "$tree/etc/containerd/config.toml"
grep -q -F "$pause" "$tree/etc/containerd/config.toml"
# A host that gives no lower OOM scores would refuse every sandbox (docs/adr/0038-a-kind-node-image.md).
sed -i 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' "$tree/etc/containerd/config.toml"
# As kind's own image has it.
chroot "$tree" sh -c 'ctr oci spec' |
    chroot "$tree" jq '.hooks.createContainer += [{ path: "/kind/bin/mount-product-files.sh" }] | del(.process.rlimits)' \
        >"$tree/etc/containerd/cri-base.json"
[ -s "$tree/etc/containerd/cri-base.json" ]
serve='containerd'
