package helperprocess

import (
	"context"
	"fmt"
	"os"

	_ "github.com/nomad-lite/nomad-lite/internal/confine/undumpable" // no helper process of root can be traced
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperserver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collector"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

func init() {
	if len(os.Args) != 2 {
		return
	}
	switch os.Args[1] {
	case keeperwire.CommandName:
		exit(keeperserver.Serve(context.Background(), keeperwire.ProtocolVersion))
	case collectorwire.CommandName:
		exit(collector.Serve(context.Background(), collectorwire.ProtocolVersion))
	}
}

// exit ends the process with the result of a helper process.
func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
