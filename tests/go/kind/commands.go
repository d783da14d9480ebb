//go:build commands

package main

// Built by its own path (tests/src/peers.rs): what kind asks a node with, beside ctr.
import _ "sigs.k8s.io/cri-tools/cmd/crictl"
