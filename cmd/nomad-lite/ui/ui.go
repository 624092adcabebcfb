package ui

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
)

const uiHelp = `Print the address of the web page of the agent, or of the page about a job, an
allocation or a node.

Exit codes: 0, or 1 when nothing or several things have this id.`

type options struct {
	client    apiclient.Flags
	withLabel bool
}

// NewCommand returns the command "ui".
func NewCommand(s *cli.Streams) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:     "ui [flags] [ID]",
		Short:   "Print the address of the web page",
		Long:    uiHelp,
		Example: "  xdg-open $(nomad-lite ui)",
		Args:    cli.RequireArgCount(0, 1, "an id, or nothing"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client.Client()
			if err != nil {
				return err
			}
			base, err := findUIAddress(cmd.Context(), o, c)
			if err != nil {
				return err
			}
			path := ""
			if len(args) > 0 {
				if path, err = findUIPath(cmd.Context(), c, args[0]); err != nil {
					return err
				}
			}
			address := base + "/ui/" + path
			if o.withLabel {
				address = "URL for web UI: " + address
			}
			_, err = fmt.Fprintln(s.Out, address)
			return err
		},
	}
	o.client.Register(cmd)
	cmd.Flags().BoolVar(&o.withLabel, "show-url", false, "print the address as Nomad does, after a label")
	return cmd
}

// findUIAddress returns the http address of the agent, also if the command uses the unix socket,
// which browsers do not support.
func findUIAddress(ctx context.Context, o options, c *api.Client) (string, error) {
	address := o.client.ClientConfig().Address
	if !strings.HasPrefix(address, "unix:") {
		return strings.TrimSuffix(address, "/"), nil
	}
	id, err := apiclient.LocalNodeID(c)
	if err != nil {
		return "", err
	}
	node, _, err := c.Nodes().Info(id, apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return "", apiclient.WrapError("ask the agent where it listens", err)
	}
	listens := node.Attributes["unique.advertise.address"] // HTTPAddr is empty in answers over a unix socket
	switch {
	case listens == "":
		return "", fmt.Errorf("the agent listens on its socket only, which a browser cannot reach: set ports { http = 4646 } in its configuration")
	case node.TLSEnabled:
		return "https://" + listens, nil
	}
	return "http://" + listens, nil
}

// uiPathPrefixes maps kinds of objects to the paths of their web pages.
var uiPathPrefixes = map[contexts.Context]string{
	contexts.Jobs:   "jobs/",
	contexts.Allocs: "allocations/",
	contexts.Nodes:  "clients/",
}

func findUIPath(ctx context.Context, c *api.Client, id string) (string, error) {
	answer, _, err := c.Search().PrefixSearch(id, contexts.All, apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return "", apiclient.WrapError(fmt.Sprintf("look for %q", id), err)
	}
	var matchingPaths []string
	for context, page := range uiPathPrefixes {
		for _, match := range answer.Matches[context] {
			if match == id {
				return page + url.PathEscape(match), nil
			}
			matchingPaths = append(matchingPaths, page+url.PathEscape(match))
		}
	}
	switch len(matchingPaths) {
	case 0:
		//lint:ignore ST1005 the text is Nomad's
		return "", fmt.Errorf("Unable to resolve ID: %q\nNo job, allocation or node has an id with this beginning", id)
	case 1:
		return matchingPaths[0], nil
	}
	//lint:ignore ST1005 the text is Nomad's
	return "", fmt.Errorf("Multiple matches found for id %q: give more of it", id)
}
