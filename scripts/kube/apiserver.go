//go:build pinned

// Package kube pins the API server that the integration tests build and talk to.
package kube

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
