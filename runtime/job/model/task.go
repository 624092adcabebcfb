package model

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

var (
	actionNamePattern   = lazyRegexp(`^[^\x00\s]{1,128}$`)
	identityNamePattern = lazyRegexp(`^[a-zA-Z0-9-_]{1,128}$`)
	secretNamePattern   = lazyRegexp(`^[a-zA-Z0-9_]{1,128}$`)
)

func checkTask(r *faultReport, jobType string, g *api.TaskGroup, t *api.Task) {
	checkTaskName(r, t.Name)
	if t.Driver == "" {
		r.addFault("Missing task driver")
	}
	checkKillTimeoutAndShutdownDelay(r, jobType, g, t)
	resources := r.nestedReport("resources")
	checkResources(resources, t.Resources)
	r.addNested(resources, "")
	checkLogConfig(r, g, t)
	checkTaskConstraints(r, t.Constraints)
	checkAffinities(r, jobType, t.Affinities)
	services := r.nestedReport()
	checkTaskServices(services, g, t)
	r.addNested(services, "")
	checkArtifacts(r, t.Artifacts)
	checkTemplates(r, t.Templates)
	if t.Vault != nil {
		at := r.nestedReport("vault")
		checkVault(at, t.Vault)
		r.addNested(at, "Vault validation failed:")
	}
	if d := t.DispatchPayload; d != nil && isOutsideAllocDir("task/local", d.File) {
		r.atPath("dispatch_payload").addFault("Dispatch Payload validation failed: destination escapes allocation directory")
	}
	if t.Lifecycle != nil {
		checkLifecycle(r.atPath("lifecycle"), t.Lifecycle)
	}
	checkVolumeMounts(r, g, t.VolumeMounts)
	if t.CSIPluginConfig != nil {
		checkCSIPlugin(r.atPath("csi_plugin"), t.CSIPluginConfig)
	}
	checkConnectProxyKind(r.atPath("kind"), g, t)
	checkIdentities(r, t)
	checkActions(r, t.Actions)
	checkSecrets(r, t)
}

func checkTaskName(r *faultReport, name string) {
	if name == "" {
		r.addFault("Missing task name")
	}
	if strings.ContainsAny(name, `/\`) {
		// A task's name is also its directory name.
		r.addFault("Task name cannot include slashes")
	}
	if strings.Contains(name, "\x00") {
		r.addFault("Task name cannot include null characters")
	}
	if name == "alloc" {
		r.addFault(`Task cannot be named "alloc"`)
	}
	if name == "." || name == ".." {
		r.addFault("Task cannot be named %q: its directory has the name of the task", name)
	}
	if len(name) > maxTaskName {
		r.addFault("Task name has %d bytes, and may have %d: its directory, log files and cgroup are named after it", len(name), maxTaskName)
	}
}

// maxTaskName is the maximum length of a task name in bytes. The longest file name with a task name is its cgroup, ID.TASK.scope
// with the allocation's ID, and the kernel allows 255 bytes.
const maxTaskName = 255 - 36 - len(".") - len(".scope")

func checkKillTimeoutAndShutdownDelay(r *faultReport, jobType string, g *api.TaskGroup, t *api.Task) {
	timeout := pointer.Value(t.KillTimeout)
	if timeout < 0 {
		r.atPath("kill_timeout").addFault("KillTimeout must be a positive value")
	} else if g.Update != nil && jobType == api.JobTypeService {
		if deadline := pointer.Value(g.Update.ProgressDeadline); deadline > 0 && timeout > deadline {
			r.atPath("kill_timeout").addFault("KillTimout (%v) longer than the group's ProgressDeadline (%v)", timeout, deadline)
		}
	}
	if t.ShutdownDelay < 0 {
		r.atPath("shutdown_delay").addFault("ShutdownDelay must be a positive value")
	}
}

// isOutsideAllocDir reports whether pathInDir, a path below dirInAlloc, itself a path below the allocation directory, leaves the
// allocation directory. It checks only the path text.
func isOutsideAllocDir(dirInAlloc, pathInDir string) bool {
	return !filepath.IsLocal(path.Join(dirInAlloc, pathInDir))
}

func checkLifecycle(r *faultReport, l *api.TaskLifecycle) {
	switch l.Hook {
	case api.TaskLifecycleHookPrestart, api.TaskLifecycleHookPoststart, api.TaskLifecycleHookPoststop:
	case "":
		r.addFault("Lifecycle validation failed: no lifecycle hook provided")
	default:
		r.addFault("Lifecycle validation failed: invalid hook: %s", l.Hook)
	}
}

func checkVault(r *faultReport, v *api.Vault) {
	switch mode := pointer.Value(v.ChangeMode); mode {
	case "restart", "noop":
	case "signal":
		if pointer.Value(v.ChangeSignal) == "" {
			r.addFault("Signal must be specified when using change mode %q", mode)
		}
	default:
		r.addFault("Unknown change mode %q", mode)
	}
}

func checkCSIPlugin(r *faultReport, p *api.TaskCSIPluginConfig) {
	if p.ID == "" {
		r.addFault("CSIPluginConfig must have a non-empty PluginID")
	}
	switch p.Type {
	case api.CSIPluginTypeNode, api.CSIPluginTypeController, api.CSIPluginTypeMonolith:
	default:
		r.addFault("CSIPluginConfig PluginType must be one of 'node', 'controller', or 'monolith', got: %q", string(p.Type))
	}
}

const connectProxyPrefix = "connect-proxy:"

// checkConnectProxyKind checks a Connect proxy's kind. Other kinds have no meaning.
func checkConnectProxyKind(r *faultReport, g *api.TaskGroup, t *api.Task) {
	proxied, ok := strings.CutPrefix(t.Kind, connectProxyPrefix)
	if !ok {
		return
	}
	if t.Leader {
		r.addFault("Connect proxy task must not have leader set")
	}
	if !slices.ContainsFunc(g.Services, func(s *api.Service) bool { return s.Name == proxied && s.Connect != nil }) {
		r.addFault("No Connect services in task group with Connect proxy (%q)", proxied)
	}
}

func checkIdentities(r *faultReport, t *api.Task) {
	// The default identity was removed from the list, so the others' indexes in the file are not known here.
	all := t.Identities
	if t.Identity != nil {
		all = append([]*api.WorkloadIdentity{t.Identity}, all...)
	}
	for _, id := range all {
		at := r.nestedReport("identity")
		checkIdentity(at, id)
		r.addNested(at, "Identity %q is invalid:", id.Name)
	}
}

func checkIdentity(r *faultReport, id *api.WorkloadIdentity) {
	if !identityNamePattern().MatchString(id.Name) {
		r.addFault("invalid name %q. Must match regex %s", id.Name, identityNamePattern())
	}
	for i, audience := range id.Audience {
		if audience == "" {
			r.addFault("an empty string is an invalid audience (%d)", i+1)
		}
	}
	switch id.ChangeMode {
	case "", "noop", "restart":
		if id.ChangeSignal != "" {
			r.addFault(`can only use change_signal=%q with change_mode="signal"`, id.ChangeSignal)
		}
	case "signal":
		if id.ChangeSignal == "" {
			r.addFault(`change_signal must be specified when using change_mode="signal"`)
		}
	default:
		r.addFault("invalid change_mode: %s", id.ChangeMode)
	}
	if id.TTL > 0 && id.Name == DefaultIdentity {
		r.addFault("ttl for default identity not yet supported")
	}
	if id.TTL < 0 {
		r.addFault("ttl must be >= 0")
	}
	if id.Filepath != "" && !id.File {
		r.addFault("file parameter must be true in order to specify filepath")
	}
}

func checkActions(r *faultReport, actions []*api.Action) {
	count := map[string]int{}
	for _, a := range actions {
		at := r.atPath("action", a.Name)
		count[a.Name]++
		if count[a.Name] == 2 {
			at.addFault("Action %s defined multiple times", a.Name)
		}
		if a.Command == "" {
			at.addFault("command cannot be empty")
		}
		if !actionNamePattern().MatchString(a.Name) {
			at.addFault("invalid name '%s'", a.Name)
		}
	}
}

func checkSecrets(r *faultReport, t *api.Task) {
	seen := map[string]bool{}
	for _, s := range t.Secrets {
		at := r.nestedReport("secret", s.Name)
		checkSecret(at, s)
		r.addNested(at, "Secret %q is invalid:", s.Name)
		if seen[s.Name] {
			r.atPath("secret", s.Name).addFault("Duplicate secret %q found", s.Name)
		}
		seen[s.Name] = true
		if s.Provider == "vault" && t.Vault == nil {
			r.atPath("secret", s.Name).addFault("Secret %q has provider \"vault\" but no vault block", s.Name)
		}
	}
}

func checkSecret(r *faultReport, s *api.Secret) {
	if !secretNamePattern().MatchString(s.Name) {
		r.addFault("secret name must match regex %s", secretNamePattern())
	}
	if s.Provider == "" {
		r.addFault("secret provider cannot be empty")
	}
	if s.Path == "" {
		r.addFault("secret path cannot be empty")
	}
	switch s.Provider {
	case "":
	case "nomad", "vault":
		if len(s.Env) > 0 {
			r.addFault("%s provider cannot use the env block", s.Provider)
		}
	default:
		if len(s.Config) > 0 {
			r.addFault("custom plugin provider %s cannot use the config block", s.Provider)
		}
	}
}
