//go:build commands

package main

// Built by their own paths (tests/src/peers.rs): kind itself, and what it asks a node with, beside ctr.
import (
	_ "sigs.k8s.io/cri-tools/cmd/crictl"
	_ "sigs.k8s.io/kind"
)
