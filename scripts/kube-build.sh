#!/usr/bin/env bash
# Build the Kubernetes API server that the integration tests watch: about six minutes on two cores
# the first time, nothing after that. Needs Go. Usage: kube-build.sh [FOLDER]; prints the program's path.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${1:-$here/../.cache/kube}
mkdir -p "$cache" && cache=$(cd "$cache" && pwd)
command -v go >/dev/null || { echo "go is missing: install Go 1.26 or newer" >&2; exit 2; }

version=$(sed -nE 's/^require k8s.io\/kubernetes (v[0-9.]+)$/\1/p' "$here/kube/go.mod")
program=$cache/kube-apiserver-$version
if [ ! -x "$program" ]; then
  minor=$(cut -d. -f2 <<<"$version") stamp=k8s.io/component-base/version
  # Without the stamps the server calls itself v0.0.0 and refuses its own API versions.
  (cd "$here/kube" && go build -o "$program.part" \
    -ldflags "-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=$minor" \
    k8s.io/kubernetes/cmd/kube-apiserver) >&2
  mv "$program.part" "$program"
fi
echo "$program"
