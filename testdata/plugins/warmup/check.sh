#!/bin/sh
# Shows that the hook works: tests (with an agent of their own), the contract, and the example job.
set -eu
cd "$(dirname "$0")"
go vet ./...
go build -o warmup .
go test -timeout 3m .
nomad-lite plugin test ./warmup

dir=$(mktemp -d)
mkdir "$dir/plugins"
cp warmup "$dir/plugins/"
nomad-lite agent -config agent.hcl -data-dir "$dir/state" -plugin-dir "$dir/plugins" >"$dir/log" 2>&1 &
trap 'nomad-lite agent stop -all "$dir/state" >/dev/null; rm -rf "$dir"' EXIT
until grep -q 'agent is ready' "$dir/log"; do sleep 0.1; done
export NOMAD_ADDR="unix://$dir/state/nomad.sock"
nomad-lite var put -out none nomad/jobs/warm password=s3cret
nomad-lite job run example.nomad.hcl
nomad-lite alloc status "$(nomad-lite job allocs warm | awk 'NR==2{print $1}')" | grep 'warmed up: 3 of 3 successes'
