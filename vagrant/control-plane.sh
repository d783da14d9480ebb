#!/bin/sh
# Inside a machine, as root: makes it the control plane of a cluster of its own, with Gantry as kubelet and container
# runtime. Run by Vagrant with CLUSTER=vm.
# $1: Gantry's package. $2: this machine's address on the machines' network. $3: the network add-on, a manifest or its
# URL. $4: URL to ask for images before the registries that they name, or nothing
set -eu

deb=$1 address=$2 network=$3 mirror=${4:-}
export DEBIAN_FRONTEND=noninteractive KUBECONFIG=/etc/kubernetes/admin.conf
# There since an earlier call came to its end.
made=/var/lib/gantry/control-plane
if [ -e "$made" ]; then
    echo "this machine is a control plane already: vagrant destroy for another one"
    dpkg --install "$deb"
    exit 0
fi

if ! command -v kubeadm >/dev/null; then
    echo "kubeadm is missing: apt-get install kubeadm (https://kubernetes.io/docs/setup), or a BOX that has it" >&2
    exit 1
fi
# A box that has everything needs no network for it.
dpkg --install "$deb" || apt-get install --yes --fix-broken --no-install-recommends

if [ -n "$mirror" ]; then
    mkdir -p /etc/containerd/certs.d/_default
    printf '[host."%s"]\n  capabilities = ["pull", "resolve"]\n' "$mirror" >/etc/containerd/certs.d/_default/hosts.toml
fi

# What `gantry join` does on the other machines.
printf 'overlay\nbr_netfilter\nnf_conntrack\n' >/etc/modules-load.d/gantry-control-plane.conf
for module in overlay br_netfilter nf_conntrack; do modprobe "$module"; done
printf 'net.ipv4.ip_forward = 1\nnet.bridge.bridge-nf-call-iptables = 1\n' >/etc/sysctl.d/99-gantry-control-plane.conf
sysctl --quiet --load /etc/sysctl.d/99-gantry-control-plane.conf
mkdir -p /etc/cni/net.d /opt/cni/bin

cat >/tmp/kubeadm.yaml <<YAML
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: { advertiseAddress: "$address" }
# An emulated machine takes minutes for what others do in seconds.
timeouts: { kubernetesAPICall: 10m, controlPlaneComponentHealthCheck: 10m, kubeletHealthCheck: 10m }
nodeRegistration:
  criSocket: unix:///run/gantry/gantry.sock
  kubeletExtraArgs:
  - { name: node-ip, value: "$address" }
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: $(kubeadm version --output short)
networking: { podSubnet: 10.244.0.0/16 }
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failSwapOn: false
YAML
[ ! -e /etc/kubernetes/admin.conf ] || kubeadm reset --force --cri-socket unix:///run/gantry/gantry.sock
# The add-ons apart: kubeadm asks for them once and waits ten seconds, in which an API server that has just begun, in an
# emulated machine, may not answer.
kubeadm init --config /tmp/kubeadm.yaml --skip-phases addon
again() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ "$tries" -lt 30 ] || return 1
        sleep 10
    done
}
again kubectl get --raw /readyz
again kubeadm init phase addon all --config /tmp/kubeadm.yaml
again kubectl apply --filename "$network"
: >"$made"
