#!/bin/sh
# check.sh builds and tests the plugin, and runs a task with it that ends with an exit code of its own.
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"

go vet ./...
go build -o clock .
go test ./...
mkdir "$tmp/plugins"
cp clock "$tmp/plugins/"

nomad-lite plugin test ./clock
code=0
nomad-lite run -plugin-dir "$tmp/plugins" example.nomad.hcl >"$tmp/out" 2>&1 || code=$?
for line in "first" "exit code 7"; do
	grep -q "$line" "$tmp/out" || { cat "$tmp/out"; echo "missing: $line"; exit 1; }
done
[ "$code" = 1 ] || { cat "$tmp/out"; echo "nomad-lite run has ended with $code"; exit 1; }
echo "all checks passed"
