package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

const (
	noVault   = "Consul and Vault are not a part of it"
	noBrowser = "no browser is opened; 'nomad-lite ui ID' prints the address of the page"
	noAgent   = "no agent is asked"
	// unasked is the reason of flags that need no message, because their effect is the
	// default.
	unasked = ""
)

// idleFlags are flags of Nomad that have no effect here. Scripts can pass them: the command
// prints why they change nothing, and continues. A flag whose name ends in = takes a value.
var idleFlags = []struct{ commands, flags, why string }{
	{"job run, job plan, plan, job validate, validate", "consul-namespace= consul-token= vault-namespace= vault-token=", noVault},
	{"job revert", "consul-token= vault-token=", noVault},
	{"job run, job status, job stop, stop, job dispatch, alloc status, alloc logs, alloc exec, node status, eval status, deployment status, status", "ui", noBrowser},
	{"job validate, validate", "address= namespace= region= token= ca-cert= ca-path= client-cert= client-key= tls-server-name= tls-skip-verify", noAgent},
	{"alloc fs, alloc logs, alloc pause, alloc restart, alloc signal, operator debug", "verbose", unasked},
	{"deployment status", "wait=", "each change is shown at once"},
	{"node drain, node eligibility", "yes", unasked},
	{"operator debug", "node-class= pprof-interval= server-id= stale", "all that the agent knows is captured, once for a profile"},
	{"plugin status, volume status", "short", unasked},
	{"ui", "authenticate", "there is no page to log in to"},
	{"agent", "client server", unasked},
	{"agent", "bootstrap-expect= encrypt= join= raft-protocol= rejoin retry-interval= retry-join= retry-max= server-join= servers=", "there are no servers to join"},
	{"agent", "consul-address= consul-token= vault-address= vault-token= vault-namespace=", noVault},
	{"agent", "alloc-dir= alloc-mounts-dir= state-dir=", "all is in the data directory"},
	{"agent", "log-file= log-rotate-bytes= log-rotate-duration= log-rotate-max-files=", "the log goes to standard error, for the journal or whoever started the agent"},
	{"agent", "network-speed= no-host-uuid", "as in the configuration"},
}

// addIdleFlags adds the ignored flags to the commands below root. Help does not list them.
func addIdleFlags(root *cobra.Command, s *streams) {
	for _, idle := range idleFlags {
		for path := range strings.SplitSeq(idle.commands, ", ") {
			cmd, rest, err := root.Find(strings.Fields(path))
			if err != nil || len(rest) > 0 {
				panic(fmt.Sprintf("idle flags of %q: there is no such command", path))
			}
			for name := range strings.FieldsSeq(idle.flags) {
				name, value := strings.CutSuffix(name, "=")
				flag := cmd.Flags().VarPF(&idleFlag{err: s.err, name: name, why: idle.why}, name, "", "")
				flag.Hidden = true
				if !value {
					flag.NoOptDefVal = "true"
				}
			}
		}
	}
}

// idleFlag is the value of an ignored flag. It prints the reason once, when it is set.
type idleFlag struct {
	err       io.Writer
	name, why string
	told      bool
}

func (f *idleFlag) Set(string) error {
	if f.told || f.why == unasked {
		return nil
	}
	f.told = true
	_, err := fmt.Fprintf(f.err, "warning: -%s has no effect: %s\n", f.name, f.why)
	return err
}

func (f *idleFlag) String() string { return "" }
func (f *idleFlag) Type() string   { return "" }
