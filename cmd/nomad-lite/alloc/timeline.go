package alloc

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
)

func showTransitions(ctx context.Context, c *api.Client, alloc *api.Allocation, o statusOptions, s *cli.Streams) error {
	reply, err := tables.ReadTransitions(ctx, c, alloc.ID, alloc.Namespace)
	if err != nil {
		return err
	}
	return o.formatFlags.PrintValueOrPage(s, reply, func(p *output.Page) { reply.Print(p, o.verbose) })
}

func showTimeline(ctx context.Context, c *api.Client, alloc *api.Allocation, o statusOptions, s *cli.Streams) error {
	reply, err := tables.ReadTimeline(ctx, c, alloc.ID, alloc.Namespace)
	if err != nil {
		return err
	}
	return o.formatFlags.PrintValueOrPage(s, reply, func(p *output.Page) {
		if o.verbose {
			reply.Print(p, alloc.ClientTerminalStatus(), true)
			return
		}
		reply.PrintBars(p, alloc.ClientTerminalStatus(), time.Now(), false)
		p.AddLine("With -verbose: all spans")
	})
}
