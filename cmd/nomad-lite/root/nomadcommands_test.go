package root

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
)

// nomadCommand is a command of Nomad, and what nomad-lite makes of it.
type nomadCommand struct {
	path  string // words of the command line
	flags string // Nomad's flags, without the flags that all commands have
	support
	differences string // differences from Nomad, for the documentation
}

type support int

const (
	supported support = iota // the command works with Nomad's flags
	rejected                 // the command prints the reason why nomad-lite does not have it
)

// nomadCommands are the commands of Nomad. docs/reference/cli.md is generated from them.
var nomadCommands = []nomadCommand{
	{"job action", "job alloc task group i t e", supported, ""},
	{"job allocs", "all json t verbose", supported, ""},
	{"job deployments", "latest all json t verbose", supported, ""},
	{"job dispatch", "meta detach idempotency-token id-prefix-template wait ui verbose", supported, ""},
	{"job eval", "force-reschedule detach verbose", supported, ""},
	{"job history", "p diff-tag diff-version full version json t", supported, ""},
	{"job init", "short connect template list-templates", supported, "`-connect` is rejected"},
	{"job inspect", "version hcl with-vars json t", supported, ""},
	{"job periodic force", "detach verbose", supported, ""},
	{"job plan", "diff hcl2-strict policy-override vault-namespace var var-file json-output json t verbose", supported, ""},
	{"job promote", "group detach verbose", supported, ""},
	{"job restart", "all-tasks batch-size batch-wait group no-shutdown-delay on-error reschedule task yes verbose", supported, "an unknown group or task is an error; without a terminal `-on-error` is `fail`"},
	{"job revert", "detach verbose", supported, ""},
	{"job run", "check-index detach eval-priority hcl2-strict output ui policy-override preserve-counts preserve-resources consul-namespace vault-namespace var var-file json verbose", supported, "`-vault-namespace`, `-consul-namespace` and `-policy-override` have no effect"},
	{"job scale", "check-index detach verbose", supported, ""},
	{"job scaling-events", "verbose", supported, ""},
	{"job start", "detach verbose", supported, ""},
	{"job status", "all-allocs evals short ui json t verbose", supported, "JSON and templates have the job, too"},
	{"job stop", "detach eval-priority global no-shutdown-delay purge yes verbose", supported, "an unknown id stops no job; `-global` has no effect"},
	{"job tag apply", "name description version", supported, ""},
	{"job tag unset", "name", supported, ""},
	{"job validate", "hcl2-strict vault-namespace var var-file json", supported, "reports more, with positions; also what this machine does not have"},
	{"alloc checks", "json t verbose", supported, ""},
	{"alloc exec", "task job group i t e", supported, ""},
	{"alloc fs", "H job group stat f tail n c verbose", supported, ""},
	{"alloc logs", "stdout stderr task group job f tail n c verbose", supported, ""},
	{"alloc pause", "state status task verbose", supported, "the agent rejects it: task schedules belong to Nomad Enterprise"},
	{"alloc restart", "all-tasks task verbose", supported, ""},
	{"alloc signal", "s task verbose", supported, ""},
	{"alloc status", "short stats ui json t verbose", supported, "without an id lists allocations; tasks are in the order of their start; `Dynamic` is `no` for a static port"},
	{"alloc stop", "detach no-shutdown-delay verbose", supported, ""},
	{"node config", "", rejected, ""},
	{"node drain", "enable disable deadline detach monitor force no-deadline ignore-system keep-ineligible m meta self yes", supported, "the tasks stop: there is no other node"},
	{"node eligibility", "disable enable self", supported, ""},
	{"node identity", "", rejected, ""},
	{"node intro", "", rejected, ""},
	{"node meta apply", "node-id unset", supported, ""},
	{"node meta read", "node-id json t", supported, ""},
	{"node pool apply", "", rejected, ""},
	{"node pool delete", "", rejected, ""},
	{"node pool info", "json t", supported, ""},
	{"node pool init", "", rejected, ""},
	{"node pool jobs", "filter page-token per-page json t", supported, ""},
	{"node pool list", "filter page-token per-page json t", supported, ""},
	{"node pool nodes", "filter page-token per-page json t verbose", supported, ""},
	{"node status", "self stats allocs short per-page page-token filter ui os quiet json t verbose", supported, "a driver that cannot be used adds the section `Drivers`"},
	{"deployment fail", "detach verbose", supported, ""},
	{"deployment list", "filter json t verbose", supported, ""},
	{"deployment pause", "verbose", supported, ""},
	{"deployment promote", "group detach verbose", supported, ""},
	{"deployment resume", "detach verbose", supported, ""},
	{"deployment status", "monitor wait ui json t verbose", supported, "without an id takes `-json`; `-wait` has no effect"},
	{"deployment unblock", "detach verbose", supported, ""},
	{"eval delete", "filter yes", supported, "for a cluster; the agent deletes evaluations with `system gc`"},
	{"eval list", "per-page page-token filter job status ui json t verbose", supported, ""},
	{"eval status", "monitor ui json t verbose", supported, ""},
	{"service delete", "", supported, ""},
	{"service info", "per-page page-token filter json t verbose", supported, ""},
	{"service list", "json t", supported, ""},
	{"scaling policy info", "json t verbose", supported, ""},
	{"scaling policy list", "job type json t verbose", supported, ""},
	{"var get", "item out template ui", supported, ""},
	{"var init", "out quiet", supported, ""},
	{"var list", "per-page page-token filter out template ui", supported, ""},
	{"var lock", "ttl delay max-retry early-return backoff shell verbose", supported, ""},
	{"var purge", "check-index", supported, ""},
	{"var put", "check-index force in out template ui verbose", supported, ""},
	{"namespace apply", "quota description json", supported, ""},
	{"namespace delete", "", supported, ""},
	{"namespace inspect", "t", supported, ""},
	{"namespace list", "json t", supported, ""},
	{"namespace status", "json t", supported, ""},
	{"status", "ui verbose", supported, ""},
	{"ui", "authenticate show-url", supported, "without a browser prints the address; with an agent that listens only on its unix socket serves the page until Ctrl-C"},
	{"version", "", supported, "the version of nomad-lite; that of the API is in `agent-info`"},
	{"fmt", "check list recursive write", supported, ""},
	{"config validate", "", supported, ""},
	{"agent", "config data-dir plugin-dir bind dc node node-class node-pool meta log-level log-json log-include-location network-interface dev acl-enabled acl-replication-token cni-path consul-ssl vault-enabled vault-tls-skip-verify dev-connect", supported, "flags of servers, Consul and Vault have no effect"},
	{"agent-info", "json t", supported, ""},
	{"monitor", "log-level log-include-location node-id server-id json", supported, ""},
	{"monitor export", "", rejected, ""},
	{"system gc", "", supported, ""},
	{"system reconcile summaries", "", supported, ""},
	{"server force-leave", "", rejected, ""},
	{"server join", "", rejected, ""},
	{"server members", "ui json t verbose", supported, ""},
	{"operator api", "dryrun filter H X verbose", supported, "an error of the agent is also printed to standard error; with a body the default method is PUT"},
	{"operator autopilot", "", rejected, ""},
	{"operator client-state", "", rejected, ""},
	{"operator debug", "consul-http-addr consul-token consul-token-file consul-client-cert consul-client-key consul-ca-cert consul-ca-path vault-address vault-token vault-client-cert vault-client-key vault-ca-cert vault-ca-path duration event-index event-topic interval log-level log-include-location log-file-export log-lookback max-nodes node-id node-class pprof-duration pprof-interval server-id stale output verbose", supported, "flags of Consul, Vault and servers have no effect"},
	{"operator gossip", "", rejected, ""},
	{"operator metrics", "pretty format json t", supported, ""},
	{"operator raft", "", rejected, ""},
	{"operator root keyring list", "verbose", supported, ""},
	{"operator root keyring remove", "force", supported, ""},
	{"operator root keyring rotate", "full now prepublish verbose", supported, ""},
	{"operator scheduler get-config", "json t", supported, ""},
	{"operator scheduler set-config", "check-index scheduler-algorithm memory-oversubscription reject-job-registration pause-eval-broker preempt-batch-scheduler preempt-service-scheduler preempt-sysbatch-scheduler preempt-system-scheduler node-limit-for-feasibility-checks", supported, "`-scheduler-algorithm` and `-node-limit-for-feasibility-checks` accept the present value only"},
	{"operator snapshot inspect", "json t", supported, ""},
	{"operator snapshot redact", "", supported, ""},
	{"operator snapshot restore", "", supported, "replaces the state of a data directory whose agent does not run"},
	{"operator snapshot save", "stale redact", supported, ""},
	{"operator snapshot state", "", supported, "without `-filter`: a table and a key select records; secrets are not shown"},
	{"operator utilization", "", rejected, ""},
	{"plugin status", "type short json t verbose", supported, "also lists drivers and hooks"},
	{"volume claim delete", "", supported, "a group has one claim of a volume"},
	{"volume claim list", "job group volume-name json t verbose", supported, ""},
	{"volume create", "detach id policy-override verbose", supported, "host volumes only"},
	{"volume delete", "force secret type", supported, "host volumes only; -force also deletes claims"},
	{"volume init", "type json", supported, "host volumes only"},
	{"volume register", "id policy-override", supported, "host volumes only"},
	{"volume status", "type short node-pool node json t verbose", supported, "also lists the host volumes of the configuration"},
	{"acl auth-method", "", rejected, ""},
	{"acl binding-rule", "", rejected, ""},
	{"acl bootstrap", "json t", supported, "the reset file is in the data directory itself"},
	{"acl policy apply", "description job group task", supported, ""},
	{"acl policy delete", "", supported, ""},
	{"acl policy info", "", supported, "also `-json` and `-t`"},
	{"acl policy list", "json t", supported, ""},
	{"acl policy self", "json t", supported, ""},
	{"acl role create", "name description policy json t", supported, ""},
	{"acl role delete", "", supported, ""},
	{"acl role info", "by-name json t", supported, "`-json` has an effect"},
	{"acl role list", "json t", supported, ""},
	{"acl role update", "name description policy no-merge json t", supported, ""},
	{"acl token create", "name type policy role-id role-name global ttl accessor json t", supported, ""},
	{"acl token delete", "", supported, ""},
	{"acl token info", "", supported, "also `-json` and `-t`"},
	{"acl token list", "json t", supported, ""},
	{"acl token self", "", supported, "also `-json` and `-t`"},
	{"acl token update", "name type policy role-id role-name global", supported, ""},
	{"login", "", rejected, ""},
	{"license", "", rejected, ""},
	{"quota", "", rejected, ""},
	{"sentinel", "", rejected, ""},
	{"recommendation", "", rejected, ""},
	{"setup", "", rejected, ""},
	{"tls", "", rejected, ""},
	{"volume deregister", "", rejected, ""},
	{"volume detach", "", rejected, ""},
	{"volume snapshot", "", rejected, ""},
}

// topLevelCommands are the commands that Nomad also has without the first word.
var topLevelCommands = []string{
	"job action", "job init", "job inspect", "job plan", "job start", "job stop", "job validate", "alloc exec", "alloc fs",
}

// unlistedCommands are commands that the tables of docs/reference/cli.md do not contain.
var unlistedCommands = []string{"help", "completion"}

// findCommand returns the command with this path, or nil.
func findCommand(root *cobra.Command, path string) *cobra.Command {
	cmd, rest, err := root.Find(strings.Fields(path))
	if err != nil || len(rest) > 0 {
		return nil
	}
	return cmd
}

// lookupFlag returns the flag with this name, or this letter, or nil.
func lookupFlag(cmd *cobra.Command, name string) *pflag.Flag {
	if f := cmd.Flag(name); f != nil || len(name) > 1 {
		return f
	}
	return cmd.Flags().ShorthandLookup(name)
}

// Each command of Nomad is there with its flags, or rejected with a reason.
func TestNomadCommands(t *testing.T) {
	root := newRootCommand(&cli.Streams{})
	for _, c := range nomadCommands {
		cmd := findCommand(root, c.path)
		if cmd == nil {
			t.Errorf("%s: no such command", c.path)
			continue
		}
		if c.support == rejected {
			if reason := rejectionReason(t, c.path); reason == "" {
				t.Errorf("%s: rejected without a reason", c.path)
			}
			continue
		}
		for name := range strings.FieldsSeq(c.flags) {
			if lookupFlag(cmd, name) == nil {
				t.Errorf("%s: no flag -%s", c.path, name)
			}
		}
	}
	for _, path := range topLevelCommands {
		_, name, _ := strings.Cut(path, " ")
		long, short := findCommand(root, path), findCommand(root, name)
		if short == nil || short.Long != long.Long {
			t.Errorf("%s is not %s", name, path)
		}
	}
}

// rejectionReason returns the reason that a rejected command prints. The command must fail with exit
// code 1 and print nothing else.
func rejectionReason(t *testing.T, path string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := Execute(append(strings.Fields(path), "-flag", "argument"), &cli.Streams{In: strings.NewReader(""), Out: &stdout, Err: &stderr})
	if code != 1 || stdout.Len() > 0 {
		t.Errorf("%s: exit code %d, stdout %q", path, code, &stdout)
	}
	_, reason, _ := strings.Cut(strings.TrimSpace(stderr.String()), "nomad-lite has no such command: ")
	return reason
}

// The tables of docs/reference/cli.md are those that nomadCommands and the command tree give.
func TestReferenceCommandTables(t *testing.T) {
	docpage.CheckPart(t, "reference/cli.md", formatCommandTables(t))
}

func formatCommandTables(t *testing.T) string {
	root := newRootCommand(&cli.Streams{})
	var b strings.Builder
	b.WriteString("\n| Command of Nomad | Flags that Nomad does not have | Differences |\n| --- | --- | --- |\n")
	known := slices.Clone(unlistedCommands)
	for _, c := range nomadCommands {
		known = append(known, c.path)
		if c.support == supported {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.path, formatOwnFlags(findCommand(root, c.path), c), c.differences)
		}
	}
	b.WriteString("\n| Command of Nomad that nomad-lite rejects | Reason |\n| --- | --- |\n")
	for _, c := range nomadCommands {
		if c.support == rejected {
			fmt.Fprintf(&b, "| `%s` | %s |\n", c.path, rejectionReason(t, c.path))
		}
	}
	for _, path := range topLevelCommands {
		_, name, _ := strings.Cut(path, " ")
		known = append(known, name)
	}
	b.WriteString("\n| Command that Nomad does not have | |\n| --- | --- |\n")
	forEachCommand(root, func(cmd *cobra.Command, path string) {
		if !slices.ContainsFunc(known, func(k string) bool {
			return path == k || strings.HasPrefix(path, k+" ") && slices.Contains(unlistedCommands, k)
		}) {
			fmt.Fprintf(&b, "| `%s` | %s |\n", path, cmd.Short)
		}
	})
	return b.String() + "\n"
}

// formatOwnFlags returns the visible flags of a command that Nomad does not have.
func formatOwnFlags(cmd *cobra.Command, c nomadCommand) string {
	nomadFlags := strings.Fields(c.flags)
	var own []string
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		_, common := f.Annotations[apiclient.ConnectionFlagAnnotation]
		if common || f.Hidden || f.Name == "help" || slices.Contains(nomadFlags, f.Name) || slices.Contains(nomadFlags, f.Shorthand) || cmd.InheritedFlags().Lookup(f.Name) != nil {
			return
		}
		own = append(own, "`-"+f.Name+"`")
	})
	return strings.Join(own, " ")
}

// forEachCommand calls do for each visible command without subcommands, with its path below root.
func forEachCommand(root *cobra.Command, do func(cmd *cobra.Command, path string)) {
	for _, cmd := range root.Commands() {
		switch {
		case cmd.Hidden:
		case cmd.HasAvailableSubCommands():
			forEachCommand(cmd, do)
		default:
			_, path, _ := strings.Cut(cmd.CommandPath(), " ")
			do(cmd, path)
		}
	}
}

// The help of each command that can fail in more than one way, or prints JSON for a program, has its exit codes.
func TestHelpHasExitCodes(t *testing.T) {
	root := newRootCommand(&cli.Streams{})
	for _, words := range []string{"run", "job run", "job plan", "job validate", "job dispatch", "plugin test", "plugin list", "alloc exec", "job action", "eval status", "config validate", "fmt"} {
		cmd, _, err := root.Find(strings.Fields(words))
		if err != nil || !strings.Contains(cmd.Long, "Exit code") {
			t.Errorf("the help of %q has no exit codes: %v", words, err)
		}
	}
}
