package root

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

const (
	noVaultReason   = "Consul and Vault are not a part of it"
	noBrowserReason = "no browser is opened; 'nomad-lite ui ID' opens the page"
	// noIgnoredFlagWarning is the reason of an ignored flag that prints no warning, because nomad-lite does by default
	// what the flag requests.
	noIgnoredFlagWarning = ""
)

// ignoredFlags are flags of Nomad that have no effect in nomad-lite. The commands accept them for existing scripts,
// print why the flags have no effect, and continue. A flag whose name ends in = takes a value.
var ignoredFlags = []struct{ commands, flags, why string }{
	{"job run, job plan, plan, job validate, validate", "consul-namespace= consul-token= vault-namespace= vault-token=", noVaultReason},
	{"job revert", "consul-token= vault-token=", noVaultReason},
	{"job stop, stop, alloc logs, alloc exec", "ui", noBrowserReason},
	{"namespace status, volume status", "ui", "the web page has no view of a single one"}, // the command "status" passes its flag -ui to these commands
	{"operator debug", "consul-http-addr= consul-token= consul-token-file= consul-client-cert= consul-client-key= consul-ca-cert= consul-ca-path=", noVaultReason},
	{"operator debug", "vault-address= vault-token= vault-client-cert= vault-client-key= vault-ca-cert= vault-ca-path=", noVaultReason},
	{"alloc checks, alloc fs, alloc logs, alloc pause, alloc restart, alloc signal, operator debug", "verbose", noIgnoredFlagWarning},
	{"deployment status", "wait=", "each change is shown at once"},
	{"node eligibility", "yes", noIgnoredFlagWarning},
	{"operator debug", "node-class= pprof-interval= server-id= stale", "all that the agent knows is captured, once for a profile"},
	{"operator debug", "log-file-export log-lookback=", "the log is captured while the command runs; the service manager has the earlier log"},
	{"plugin status, volume status", "short", noIgnoredFlagWarning},
	{"volume delete", "secret=", "secrets are for CSI volumes"},
	{"plugin status", "type=", "all types of plugins are shown"},
	{"agent", "client server", noIgnoredFlagWarning},
	{"agent", "authoritative-region= bootstrap-expect= encrypt= join= raft-protocol= redundancy-zone= rejoin retry-interval= retry-join= retry-max= server-join= upgrade-version=", "write the addresses of servers in -servers, or in client.servers of the configuration"},
	{"agent", "consul-address= consul-auth= consul-auto-advertise consul-ca-file= consul-cert-file= consul-checks-use-advertise consul-client-auto-join consul-client-service-name= " +
		"consul-key-file= consul-server-auto-join consul-server-service-name= consul-ssl consul-token= consul-verify-ssl dev-connect dev-consul", noVaultReason},
	{"agent", "vault-address= vault-allow-unauthenticated vault-ca-file= vault-ca-path= vault-cert-file= vault-create-from-role= vault-enabled vault-key-file= vault-namespace= " +
		"vault-tls-server-name= vault-tls-skip-verify vault-token= dev-vault", noVaultReason},
	{"agent", "acl-enabled acl-replication-token=", "the configuration of an agent enables access control: acl { enabled = true }"},
	{"agent", "cni-config-dir= cni-path=", "write client.cni_config_dir and client.cni_path into the configuration"},
	{"agent", "alloc-dir= alloc-mounts-dir= state-dir=", "all is in the data directory"},
	{"agent", "log-rotate-bytes= log-rotate-duration= log-rotate-max-files=", "the log is written to standard error; systemd passes it to the journal"},
	{"agent", "network-speed= no-host-uuid", "as in the configuration"},
}

// addIgnoredFlags adds the ignored flags to the commands below root, hidden from the help text. If only is not empty, it adds them to
// the command of that name only.
func addIgnoredFlags(root *cobra.Command, only string, s *cli.Streams) {
	for _, idle := range ignoredFlags {
		for path := range strings.SplitSeq(idle.commands, ", ") {
			if only != "" && path != only {
				continue
			}
			cmd, rest, err := root.Find(strings.Fields(path))
			if err != nil || len(rest) > 0 {
				panic(fmt.Sprintf("idle flags of %q: there is no such command", path))
			}
			for name := range strings.FieldsSeq(idle.flags) {
				name, value := strings.CutSuffix(name, "=")
				flag := cmd.Flags().VarPF(&ignoredFlag{stderr: s.Err, name: name, reason: idle.why}, name, "", "")
				flag.Hidden = true
				if !value {
					flag.NoOptDefVal = "true"
				}
			}
		}
	}
}

// ignoredFlag is the pflag.Value of an ignored flag. When it is set for the first time, it prints the reason why the
// flag has no effect.
type ignoredFlag struct {
	stderr         io.Writer
	name, reason   string
	warningPrinted bool
}

func (f *ignoredFlag) Set(string) error {
	if f.warningPrinted || f.reason == noIgnoredFlagWarning {
		return nil
	}
	f.warningPrinted = true
	_, err := fmt.Fprintf(f.stderr, "warning: -%s has no effect: %s\n", f.name, f.reason)
	return err
}

func (f *ignoredFlag) String() string { return "" }

func (f *ignoredFlag) Type() string { return "" }
