#!/bin/sh
# Writes the Python code of the .proto files that plugins need. It needs protoc
# and its plugin for Python (Debian: protobuf-compiler-grpc), of the version of
# Debian 12: code of a later version may be too new for the library of Debian 12.
set -eu
cd "$(dirname "$0")/.."
case "$(protoc --version)" in
*" 3.21."*) ;;
*) echo "$PWD: left as it is; only protoc 3.21 (Debian 12) writes it again" && exit ;;
esac
command -v grpc_python_plugin >/dev/null || { echo "$PWD: left as it is; Debian's protobuf-compiler-grpc writes it again" && exit; }

# generate DIR PROTO... writes the code of PROTO... below DIR.
generate() {
	out=$1/src
	shift
	mkdir -p "$out"
	protoc -I ../../../.. --plugin=protoc-gen-grpc_python="$(command -v grpc_python_plugin)" \
		--python_out="$out" --grpc_python_out="$out" "$@"
	# These have no service.
	rm -f "$out"/hclspec/specpb/hcl_spec_pb2_grpc.py "$out"/plugins/proto/structspb/*_pb2_grpc.py
}

generate python hclspec/specpb/hcl_spec.proto plugins/proto/basepb/base.proto
generate pythondriver plugins/proto/driverpb/driver.proto plugins/proto/structspb/attribute.proto
generate pythonhook plugins/proto/hookpb/hook.proto plugins/proto/hookpb/host.proto
generate pythondevice plugins/proto/devicepb/device.proto plugins/proto/structspb/attribute.proto plugins/proto/structspb/stats.proto
