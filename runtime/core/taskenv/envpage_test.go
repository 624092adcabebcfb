package taskenv

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/host/launch"
)

// taskVariables are the task variables with their values. LABEL, KEY, IDENTITY and TASK stand for names that a job
// chooses.
var taskVariables = []struct{ name, value string }{
	{"NOMAD_ALLOC_DIR", "path of the directory that the tasks of the group share, as the task sees it"},
	{"NOMAD_TASK_DIR", "path of the directory `local` of the task, as the task sees it"},
	{"NOMAD_SECRETS_DIR", "path of the directory `secrets` of the task, as the task sees it"},
	{"NOMAD_ALLOC_ID", "id of the allocation"},
	{"NOMAD_SHORT_ALLOC_ID", "first eight characters of the id"},
	{"NOMAD_ALLOC_NAME", "name of the allocation: `JOB.GROUP[INDEX]`"},
	{"NOMAD_ALLOC_INDEX", "index of the allocation in its group, from 0"},
	{"NOMAD_GROUP_NAME", "name of the group"},
	{"NOMAD_TASK_NAME", "name of the task"},
	{"NOMAD_JOB_ID", "id of the job"},
	{"NOMAD_JOB_NAME", "name of the job"},
	{"NOMAD_JOB_PARENT_ID", "id of the periodic or parameterized job that launched the job"},
	{"NOMAD_NAMESPACE", "namespace of the job"},
	{"NOMAD_DC", "datacenter of the node"},
	{"NOMAD_REGION", "region of the node"},
	{"NOMAD_PARENT_CGROUP", "cgroup that contains the cgroups of all tasks, if the agent makes cgroups"},
	{"NOMAD_CPU_LIMIT", "`cpu` of the task, in MHz"},
	{"NOMAD_CPU_CORES", "ids of the cores that only this task uses, such as `0,2-3`; one space if the task has no `cores`"},
	{"NOMAD_MEMORY_LIMIT", "`memory` of the task, in MiB"},
	{"NOMAD_MEMORY_MAX_LIMIT", "`memory_max` of the task, in MiB"},
	{"NOMAD_META_KEY", "value of a key in `meta` of the job, the group or the task; a second variable has the key in upper case"},
	{"NOMAD_IP_LABEL", "address of the port on the machine"},
	{"NOMAD_PORT_LABEL", "number of the port for the task: `to` of the port, or the port of the machine"},
	{"NOMAD_ADDR_LABEL", "address and port on the machine: `IP:PORT`"},
	{"NOMAD_HOST_IP_LABEL", "address of the port on the machine"},
	{"NOMAD_HOST_PORT_LABEL", "number of the port on the machine"},
	{"NOMAD_HOST_ADDR_LABEL", "address and port on the machine"},
	{"NOMAD_ALLOC_INTERFACE_LABEL", "interface in the network of the group"},
	{"NOMAD_ALLOC_IP_LABEL", "address in the network of the group"},
	{"NOMAD_ALLOC_PORT_LABEL", "number of the port in the network of the group"},
	{"NOMAD_ALLOC_ADDR_LABEL", "address and port in the network of the group"},
	{"NOMAD_IPv4_LABEL", "address of a port of the task's own `network` block (deprecated), if it is of IPv4"},
	{"NOMAD_IPv6_LABEL", "the same of IPv6"},
	{"NOMAD_IP_TASK_LABEL", "address of a port of another task's own `network` block (deprecated)"},
	{"NOMAD_PORT_TASK_LABEL", "number of such a port"},
	{"NOMAD_ADDR_TASK_LABEL", "address and number of such a port"},
	{"NOMAD_TOKEN", "token of the default identity, if its block has `env = true`"},
	{"NOMAD_TOKEN_IDENTITY", "token of another identity whose block has `env = true`"},
	{"NOMAD_UNIX_ADDR", "address of the agent's API for the task, if the task has a token in its environment"},
}

// pluginVariables are the variables that the agent adds to a plugin process's environment.
var pluginVariables = []struct{ name, value string }{
	{basewire.Handshake.MagicCookieKey, docpage.Code(basewire.Handshake.MagicCookieValue) + ", with which the host shows that it starts the program as a plugin"},
	{"NOMAD_LITE_KEEPER", "path of the socket of the keeper process, for the package `sdk/process`; Nomad does not set it"},
	{"NOMAD_LITE_DIRECTORY_ID", "id of the data directory, by which the tasks of an agent are found again; Nomad does not set it"},
}

// docs/reference/task-environment.md has each variable of docs/promises/task-environment.txt and
// plugin-environment.txt.
func TestReferenceTaskEnvironmentPage(t *testing.T) {
	names := map[string]bool{}
	for _, name := range promiseLines(testNode()) {
		names[strings.TrimRight(name, "46")] = true // the test's labels end with the IP version
	}
	tasks := docpage.NewTable("Variable", "Value")
	for _, v := range taskVariables {
		if !names[v.name] {
			t.Errorf("no task has the variable %s", v.name)
		}
		delete(names, v.name)
		tasks.AddRow(docpage.Code(v.name), v.value)
	}
	for name := range names {
		t.Errorf("taskVariables does not have %s", name)
	}

	added := map[string]bool{basewire.Handshake.MagicCookieKey: true}
	for _, variable := range launch.PluginEnviron(nil, nil, "socket", "id") {
		name, _, _ := strings.Cut(variable, "=")
		added[name] = true
	}
	plugins := docpage.NewTable("Variable", "Value")
	for _, v := range pluginVariables {
		if !added[v.name] {
			t.Errorf("no plugin gets the variable %s", v.name)
		}
		delete(added, v.name)
		plugins.AddRow(docpage.Code(v.name), v.value)
	}
	for name := range added {
		t.Errorf("pluginVariables does not have %s", name)
	}
	denied := strings.ReplaceAll(docpage.Code(base.DefaultEnvDenylist()...), " ", ", ")
	docpage.Check(t, "reference/task-environment.md", fmt.Sprintf(environmentPage, tasks, denied, plugins))
}

const environmentPage = `# Environment of tasks and plugins

This page is generated from the tables of a test that builds an environment (` + "`make reference`" + `).

## Tasks

In the names, LABEL is the label of a port, KEY a key of ` + "`meta`" + `, IDENTITY the name of an ` + "`identity`" + ` block, and TASK the name of another task. In the names of variables
for ports and metadata, characters other than letters, digits and ` + "`_`" + ` become ` + "`_`" + `. A variable without a value is not set, unless the table states a value for that case.

%s
A task has further variables. For the same name, a later line replaces an earlier one:

1. the variables of the first table,
2. variables of the agent, unless the driver runs images: all, or those of ` + "`env.allowlist`" + `, less those of ` + "`env.denylist`" + ` in ` + "`client { options { … } }`" + `; they replace no variable of the first table,
3. the block ` + "`env`" + ` of the task,
4. variables of hooks and device plugins,
5. variables of templates with ` + "`env = true`" + `.

With ` + "`task_traceparent = true`" + ` in the block ` + "`otlp`" + `, a task also has ` + "`TRACEPARENT`" + `, the trace context of its start, unless its job sets the variable.

The default of ` + "`env.denylist`" + ` is %s.

## Plugins

A plugin process inherits the variables of the agent that ` + "`env_allowlist`" + ` in its ` + "`plugin`" + ` block names. Without it, a builtin plugin inherits paths, language, proxies and certificates, and
another plugin all variables but those of the default of ` + "`env.denylist`" + `. Variables of the agent that start with ` + "`NOMAD_LITE_`" + ` are not inherited, unless they start with ` + "`NOMAD_LITE_PLUGIN_`" + `. The agent adds:

%s
go-plugin adds the variables of its handshake, such as ` + "`PLUGIN_PROTOCOL_VERSIONS`" + ` and ` + "`PLUGIN_UNIX_SOCKET_DIR`" + `.
`
