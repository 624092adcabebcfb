#!/bin/sh
# Writes the Python code of the .proto files that a driver needs. It needs protoc
# and its plugin for Python (Debian: protobuf-compiler-grpc), of the version of
# Debian 12: code of a later version may be too new for the library of Debian 12.
set -eu
cd "$(dirname "$0")"
case "$(protoc --version)" in
*" 3.21."*) ;;
*) echo "$PWD: left as it is; only protoc 3.21 (Debian 12) writes it again" && exit ;;
esac
command -v grpc_python_plugin >/dev/null || { echo "$PWD: left as it is; Debian's protobuf-compiler-grpc writes it again" && exit; }
mkdir -p src
protoc -I ../../../../.. --plugin=protoc-gen-grpc_python="$(command -v grpc_python_plugin)" \
	--python_out=src --grpc_python_out=src \
	hclspec/specpb/hcl_spec.proto plugins/proto/basepb/base.proto plugins/proto/driverpb/driver.proto plugins/proto/structspb/attribute.proto
# They have no service.
rm -f src/hclspec/specpb/hcl_spec_pb2_grpc.py src/plugins/proto/structspb/attribute_pb2_grpc.py
