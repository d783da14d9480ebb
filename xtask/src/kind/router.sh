#!/bin/sh
# What cni.yaml runs on each node. NODE_NAME: this node, POD_SUBNET: the range of all pods.
set -u
FORM='{range .items[*]}{.metadata.name} {.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}'

conflist() {
    cat <<JSON
{
  "cniVersion": "1.0.0",
  "name": "kind",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni-ipam-state",
        "ranges": [[{ "subnet": "$1" }]],
        "routes": [{ "dst": "0.0.0.0/0" }]
      }
    },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}
JSON
}

masquerade() {
    nft -f - <<RULES
add table ip kind-router
flush table ip kind-router
add chain ip kind-router out { type nat hook postrouting priority srcnat + 10; }
add rule ip kind-router out ip saddr $1 ip daddr != $POD_SUBNET masquerade
RULES
}

turn() {
    while read -r name range address; do
        [ -n "$address" ] || continue
        if [ "$name" != "$NODE_NAME" ]; then
            ip route replace "$range" via "$address" || return 1
            continue
        fi
        [ -e /tmp/masqueraded ] || masquerade "$range" || return 1
        : >/tmp/masqueraded
        conflist "$range" >/conflists/.10-kind.new || return 1
        cmp -s /conflists/.10-kind.new /conflists/10-kind.conflist && continue
        # Last, and whole: a runtime reads it at once.
        mv /conflists/.10-kind.new /conflists/10-kind.conflist || return 1
        echo "this node has $range"
    done </tmp/nodes
    # Of nodes that have gone.
    while read -r name range address; do
        grep -q "^$name $range " /tmp/nodes || ip route del "$range" via "$address"
    done </tmp/before
    cp /tmp/nodes /tmp/before
}

: >/tmp/before
until false; do
    if kubectl get nodes --output "jsonpath=$FORM" >/tmp/nodes; then
        turn || echo "tried again in a moment"
        sleep 5
    else
        sleep 1
    fi
done
