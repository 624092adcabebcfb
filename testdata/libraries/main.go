// Libraries is a program that imports the libraries on which nomad-lite is built, and does nothing.
// It is the baseline for what each process of nomad-lite costs before any code of nomad-lite runs:
// the initialisation of packages and the memory of an idle process. A library that the agent or the
// command line starts to use is added here if another implementation would use it too.
//
// It exits when its standard input ends.
package main

import (
	"io"
	"os"

	_ "github.com/Masterminds/sprig/v3"
	_ "github.com/coder/websocket"
	_ "github.com/containernetworking/cni/libcni"
	_ "github.com/google/nftables"
	_ "github.com/hashicorp/cronexpr"
	_ "github.com/hashicorp/go-bexpr"
	_ "github.com/hashicorp/go-cty-funcs/cidr"
	_ "github.com/hashicorp/go-cty-funcs/crypto"
	_ "github.com/hashicorp/go-cty-funcs/encoding"
	_ "github.com/hashicorp/go-cty-funcs/filesystem"
	_ "github.com/hashicorp/go-cty-funcs/uuid"
	_ "github.com/hashicorp/go-hclog"
	_ "github.com/hashicorp/go-memdb"
	_ "github.com/hashicorp/go-msgpack/v2/codec"
	_ "github.com/hashicorp/go-plugin"
	_ "github.com/hashicorp/hcl/v2/gohcl"
	_ "github.com/hashicorp/hcl/v2/hclparse"
	_ "github.com/hashicorp/hcl/v2/hclsyntax"
	_ "github.com/hashicorp/nomad/api"
	_ "github.com/moby/moby/client"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/spf13/cobra"
	_ "github.com/vishvananda/netlink"
	_ "github.com/zclconf/go-cty-yaml"
	_ "github.com/zclconf/go-cty/cty/function/stdlib"
	_ "github.com/zclconf/go-cty/cty/msgpack"
	_ "go.etcd.io/bbolt"
	_ "go.yaml.in/yaml/v3"
	_ "google.golang.org/grpc"
	_ "google.golang.org/protobuf/proto"
)

func main() {
	_, _ = io.Copy(io.Discard, os.Stdin) // an error ends the program, as the end of the input does
}
