//go:build commands

// Package metrics names metrics-server for `go mod tidy`: a module of its own, since it asks for other versions of
// Kubernetes' libraries than this release's. Nothing is compiled from this file (tests/src/cluster/programs.rs).
package metrics

import _ "sigs.k8s.io/metrics-server/cmd/metrics-server"
