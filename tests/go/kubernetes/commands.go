//go:build commands

// Package kubernetes names the programs of Kubernetes itself that tests run: the control plane that a node joins, the
// kubelet and kube-proxy it is compared with, the clients, and upstream's own suites. `go mod tidy` keeps what they
// need; nothing is ever compiled from this file, each is built by its own path (tests/src/cluster/programs.rs).
//
// Every staging module is replaced by the version that belongs to this release: the one requirement says v0.0.0.
package kubernetes

import (
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubeadm"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/e2e_node"
	_ "k8s.io/kubernetes/test/images/agnhost"
	_ "k8s.io/kubernetes/test/images/nonewprivs"
	_ "k8s.io/kubernetes/test/images/sample-device-plugin"
	_ "k8s.io/sample-apiserver"
)
