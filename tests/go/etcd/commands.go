//go:build commands

// Package etcd names etcd, the control plane's store, for `go mod tidy`: a module of its own, since it and Kubernetes
// ask for different versions of the same libraries. Nothing is compiled from this file (tests/src/cluster/programs.rs).
package etcd

import _ "go.etcd.io/etcd/server/v3"
