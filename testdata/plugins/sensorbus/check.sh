#!/bin/sh
# check.sh builds and tests the plugin, and runs the example job with it, on a bus of its own.
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"

go vet ./...
go build -o sensorbus .
go test ./...

./mkbus.sh "$tmp/bus"
mkdir "$tmp/plugins"
cp sensorbus "$tmp/plugins/"
for f in agent.hcl plugin_test.hcl; do sed "s|/tmp/sensorbus|$tmp/bus|" "$f" >"$tmp/$f"; done

nomad-lite plugin test -tasks "$tmp/plugin_test.hcl" ./sensorbus
nomad-lite run -plugin-dir "$tmp/plugins" -config "$tmp/agent.hcl" example.nomad.hcl >"$tmp/out" 2>&1 || { cat "$tmp/out"; exit 1; }
for line in "attic: 21.5" "relay is writable" "thermo is read-only" "done"; do
	grep -q "$line" "$tmp/out" || { cat "$tmp/out"; echo "missing: $line"; exit 1; }
done
[ "$(cat "$tmp/bus/relay/pump/value")" = 5 ]
[ "$(cat "$tmp/bus/thermo/attic/value")" = 21.5 ]
echo "all checks passed"
