#!/bin/sh
# What the Vagrantfile asks of a cluster, on the machine that has it. A cluster is a kind cluster's name, then its
# control plane is docker's container NAME-control-plane; or `-`: then kubectl and kubeadm of this machine reach it by
# the KUBECONFIG that is set; or `vm`: then the control plane is a machine of the Vagrantfile.
set -eu

die() {
    echo "cluster.sh: $*" >&2
    exit 1
}

# Runs a program where the cluster's administrator is.
administrator() {
    if [ "$cluster" = - ]; then
        "$@"
    elif [ "$cluster" = vm ]; then
        (cd "$(dirname "$0")" && vagrant ssh "${NAME:-gantry}-control-plane" -- -T sudo \
            env KUBECONFIG=/etc/kubernetes/admin.conf "$@" </dev/null)
    else
        docker exec -e KUBECONFIG=/etc/kubernetes/admin.conf "$cluster-control-plane" "$@"
    fi
}

# The docker network that kind's nodes are in.
network() { docker network inspect "${KIND_EXPERIMENTAL_DOCKER_NETWORK:-kind}" "$@"; }

# 10.1.2.3 as a number, and back.
number() {
    (IFS=. && set -- $1 && echo $((($1 << 24) + ($2 << 16) + ($3 << 8) + $4)))
}
dotted() { echo "$(($1 >> 24 & 255)).$(($1 >> 16 & 255)).$(($1 >> 8 & 255)).$(($1 & 255))"; }

what=${1:-} cluster=${2:-kind}
case $what in
bridge)
    # As docker names them, unless the network says otherwise.
    named=$(network --format '{{index .Options "com.docker.network.bridge.name"}}')
    [ -n "$named" ] || named=br-$(network --format '{{.Id}}' | cut -c1-12)
    echo "$named"
    ;;
address)
    # The Nth from the top of the network, since docker gives its own from the bottom; or from $4 on, ADDRESS/PREFIX.
    nth=$3 first=${4:-}
    if [ -n "$first" ]; then
        echo "$(dotted $(($(number "${first%/*}") + nth - 1)))/${first#*/}"
        exit 0
    fi
    subnet=$(network --format '{{range .IPAM.Config}}{{.Subnet}} {{end}}' | tr ' ' '\n' | grep -m 1 -F . || true)
    [ -n "$subnet" ] || die "the docker network kind has no IPv4 subnet"
    prefix=${subnet#*/}
    top=$(($(number "${subnet%/*}") | ((1 << (32 - prefix)) - 1)))
    echo "$(dotted $((top - nth)))/$prefix"
    ;;
facts)
    # `kubeadm join HOST:PORT --token T --discovery-token-ca-cert-hash sha256:H`
    line=$(administrator kubeadm token create --ttl 1h --print-join-command)
    echo "NODE_IP=$3"
    [ -z "${4:-}" ] || echo "MIRROR=$4"
    set -- $line
    [ "${1:-} ${2:-}" = "kubeadm join" ] || die "kubeadm token create said: $line"
    echo "API=$3"
    shift 3
    while [ $# -gt 1 ]; do
        case $1 in
        --token) echo "TOKEN=$2" ;;
        --discovery-token-ca-cert-hash) echo "CA_HASH=$2" ;;
        esac
        shift 2
    done
    if [ "$cluster" != - ] && [ "$cluster" != vm ]; then
        address=$(docker inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' \
            "$cluster-control-plane")
        echo "API_ADDRESS=$address"
    fi
    ;;
forget)
    administrator kubectl delete node "$3" --ignore-not-found
    ;;
*) die "bridge|address|facts|forget CLUSTER ..." ;;
esac
