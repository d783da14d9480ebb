#!/bin/sh
# Inside a machine, as root: makes it a node of a cluster. Run by Vagrant.
# $1: Gantry's package. $2: what cluster.sh says of the cluster, KEY=VALUE lines:
#   API=HOST:PORT  API_ADDRESS=IP of that host, where no DNS knows it  TOKEN=  CA_HASH=sha256:...
#   NODE_IP=this machine's address on the cluster's network
#   MIRROR=URL to ask for images before the registries that they name
set -eu

deb=$1
API='' API_ADDRESS='' TOKEN='' CA_HASH='' NODE_IP='' MIRROR=''
while IFS='=' read -r key value; do
    case $key in
    API) API=$value ;;
    API_ADDRESS) API_ADDRESS=$value ;;
    TOKEN) TOKEN=$value ;;
    CA_HASH) CA_HASH=$value ;;
    NODE_IP) NODE_IP=$value ;;
    MIRROR) MIRROR=$value ;;
    *) echo "provision.sh: $2 has $key, which nobody knows" >&2 && exit 1 ;;
    esac
done <"$2"
: "${API:?is not in $2}" "${TOKEN:?is not in $2}" "${CA_HASH:?is not in $2}" "${NODE_IP:?is not in $2}"

export DEBIAN_FRONTEND=noninteractive
# What a machine that is a node already must not be asked for again.
if [ -e /etc/kubernetes/kubelet.conf ]; then
    echo "this machine is a node already: gantry leave first, or vagrant destroy"
    dpkg --install "$deb"
    exit 0
fi

if ! command -v kubeadm >/dev/null; then
    echo "kubeadm is missing: apt-get install kubeadm (https://kubernetes.io/docs/setup), or a BOX that has it" >&2
    exit 1
fi
# A box that has everything needs no network for it.
dpkg --install "$deb" || apt-get install --yes --fix-broken --no-install-recommends

if [ -n "$MIRROR" ]; then
    mkdir -p /etc/containerd/certs.d/_default
    printf '[host."%s"]\n  capabilities = ["pull", "resolve"]\n' "$MIRROR" >/etc/containerd/certs.d/_default/hosts.toml
fi

# All that a join changes, `gantry leave` takes back. The host's name goes into /etc/hosts where no DNS knows it.
gantry join --token "$TOKEN" --discovery-token-ca-cert-hash "$CA_HASH" --node-ip "$NODE_IP" \
    "${API_ADDRESS:-${API%:*}}:${API##*:}"
