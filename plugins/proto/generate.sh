#!/bin/sh
# Writes the Go code of every .proto file in the repository. It needs protoc
# (Debian: protobuf-compiler); internal/tools/go.mod has the versions of the generators.
set -eu
cd "$(dirname "$0")/../.."

bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go -C internal/tools build -o "$bin/" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc

protos=$(find hclspec plugins -name '*.proto' | LC_ALL=C sort)
# shellcheck disable=SC2086
protoc --plugin="$bin/protoc-gen-go" --plugin="$bin/protoc-gen-go-grpc" \
	--go_out=. --go_opt=paths=source_relative \
	--go-grpc_out=. --go-grpc_opt=paths=source_relative \
	$protos

# The version of protoc does not change the code, only this line of it: without
# it the result is the same on every machine.
for proto in $protos; do
	for file in "${proto%.proto}.pb.go" "${proto%.proto}_grpc.pb.go"; do
		if [ -f "$file" ]; then
			sed -i '/^\/\/ .*protoc  *v[0-9]/d' "$file"
		fi
	done
done
