#!/bin/sh
# Writes the Python code of the .proto files that a hook needs. It needs protoc
# and its plugin for Python (Debian: protobuf-compiler-grpc), of the version of
# Debian 12: what another one writes may be too new for the library of Debian 12.
set -eu
cd "$(dirname "$0")"
case "$(protoc --version)" in
*" 3.21."*) ;;
*) echo "$PWD: left as it is; only protoc 3.21 (Debian 12) writes it again" && exit ;;
esac
command -v grpc_python_plugin >/dev/null || { echo "$PWD: left as it is; Debian's protobuf-compiler-grpc writes it again" && exit; }
mkdir -p proto
protoc -I ../../.. --plugin=protoc-gen-grpc_python="$(command -v grpc_python_plugin)" \
	--python_out=proto --grpc_python_out=proto \
	hclspec/specpb/hcl_spec.proto plugins/proto/basepb/base.proto plugins/proto/hookpb/hook.proto plugins/proto/hookpb/host.proto
# It has no service.
rm -f proto/hclspec/specpb/hcl_spec_pb2_grpc.py
