package tables

import (
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

// NewServiceTable returns a table with one line per service instance.
func NewServiceTable(all []*api.ServiceRegistration, verbose bool) *output.Table {
	t := output.NewTable("Job ID", "Address", "Tags", "Node ID", "Alloc ID", "Service")
	for _, r := range all {
		t.AddRow(r.JobID, ServiceAddress(r), "["+strings.Join(r.Tags, ",")+"]", output.ShortIDUnlessVerbose(r.NodeID, verbose), output.ShortIDUnlessVerbose(r.AllocID, verbose), r.ServiceName)
	}
	return t
}

// ServiceAddress returns the address and the port of a service registration, or only the address if the port is 0.
func ServiceAddress(r *api.ServiceRegistration) string {
	if r.Port == 0 {
		return r.Address
	}
	if strings.Contains(r.Address, ":") {
		return fmt.Sprintf("[%s]:%d", r.Address, r.Port)
	}
	return fmt.Sprintf("%s:%d", r.Address, r.Port)
}
