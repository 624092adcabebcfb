package apiclient

import (
	"context"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

// PageFlags are Nomad's flags that filter a list and select one page of it.
type PageFlags struct {
	Filter    string
	perPage   int32
	nextToken string
}

// Register adds the flags to a command.
func (f *PageFlags) Register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Filter, "filter", "", "list only what this `expression` is true of, such as 'JobID == \"web\"'")
	cmd.Flags().Int32Var(&f.perPage, "per-page", 0, "list at most so `many`")
	cmd.Flags().StringVar(&f.nextToken, "page-token", "", "list what comes after this `token`, which the page before has named")
}

// QueryOptions returns the options of a read request for the selected page.
func (f *PageFlags) QueryOptions(ctx context.Context) *api.QueryOptions {
	q := QueryOptions(ctx, "")
	q.Filter, q.PerPage, q.NextToken = f.Filter, f.perPage, f.nextToken
	return q
}
