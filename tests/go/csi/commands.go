//go:build commands

// Package csi names upstream's sanity suite of CSI drivers for `go mod tidy`; the tests' own driver and its sidecars
// are in the folders beside. Nothing is compiled from this file (tests/src/cluster/programs.rs).
package csi

import _ "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"
