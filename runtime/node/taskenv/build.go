package taskenv

import (
	"cmp"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// taskDirs are the directories in the environment of a task.
type taskDirs struct{ alloc, local, secrets string }

// visibleDirs returns the directories as the task sees them.
func (in *envInputs) visibleDirs() taskDirs {
	if in.dir.AllocDir == "" {
		return taskDirs{} // there is no task, or it has no directories yet
	}
	switch in.isolation {
	case driver.FSIsolationChroot, driver.FSIsolationImage:
		return taskDirs{alloc: "/alloc", local: "/local", secrets: "/secrets"}
	case driver.FSIsolationUnveil:
		return taskDirs{alloc: in.dir.MountsAllocDir, local: in.dir.MountsTaskDir, secrets: in.dir.MountsSecretsDir}
	}
	return taskDirs{alloc: in.dir.SharedAllocDir, local: in.dir.LocalDir, secrets: in.dir.SecretsDir}
}

// buildEnv makes an environment from layers, in the order of ascending precedence.
func buildEnv(in *envInputs) map[string]string {
	v := &layeredVars{env: make(map[string]string, 24+len(in.hostEnv)+len(in.task.Env)), in: in, remainingBytes: maxInsertedBytes}
	in.addBuiltinVars(v, in.visibleDirs())

	meta := make(map[string]string)
	for _, kv := range metaVars(in.mergedMeta(), func(key string) string { return expandReferences(key, &v.remainingBytes, v.lookup) }) {
		meta[kv.key] = kv.value
	}
	v.addLayer(meta)

	if in.isolation != driver.FSIsolationImage && len(in.hostEnv) > 0 {
		absent := make(map[string]string, len(in.hostEnv))
		for key, value := range in.hostEnv {
			if _, exists := v.env[replaceInvalidKeyChars(key)]; !exists {
				absent[key] = value
			}
		}
		v.addLayer(absent)
	}
	v.addLayer(in.task.Env)
	for _, h := range in.hookEnvs {
		v.addLayer(h.env)
	}
	for key, value := range replaceInvalidCharsOfKeys(in.templateEnv) {
		v.env[key] = value
	}
	return v.env
}

// addBuiltinVars sets the variables that come from the job and the placement.
func (in *envInputs) addBuiltinVars(v *layeredVars, d taskDirs) {
	some := func(key, value string) {
		if value != "" {
			v.setVar(key, value)
		}
	}
	number := func(key string, n int64) {
		if n != 0 {
			v.setVar(key, strconv.FormatInt(n, 10))
		}
	}

	some("NOMAD_ALLOC_DIR", d.alloc)
	some("NOMAD_TASK_DIR", d.local)
	some("NOMAD_SECRETS_DIR", d.secrets)

	a := &in.alloc
	some("NOMAD_ALLOC_ID", a.ID)
	some("NOMAD_SHORT_ALLOC_ID", a.ID[:min(8, len(a.ID))])
	some("NOMAD_ALLOC_NAME", a.Name)
	some("NOMAD_ALLOC_INDEX", allocIndex(a.Name))
	some("NOMAD_GROUP_NAME", a.Group)
	some("NOMAD_JOB_ID", a.JobID)
	some("NOMAD_JOB_NAME", a.JobName)
	some("NOMAD_JOB_PARENT_ID", a.ParentJobID)
	some("NOMAD_NAMESPACE", a.Namespace)
	some("NOMAD_DC", in.node.Datacenter)
	some("NOMAD_REGION", in.node.Region)
	some("NOMAD_PARENT_CGROUP", in.node.ParentCgroup)

	in.addGroupPorts(v)
	in.addTaskPorts(v)
	in.addTokens(v, d)

	if t := &in.task; t.Name != "" {
		v.setVar("NOMAD_TASK_NAME", t.Name)
		number("NOMAD_CPU_LIMIT", t.CPU)
		number("NOMAD_MEMORY_LIMIT", t.MemoryMB)
		number("NOMAD_MEMORY_MAX_LIMIT", t.MemoryMaxMB)
		// Without reserved cores, Nomad sets one space, and scripts compare with it.
		v.setVar("NOMAD_CPU_CORES", cmp.Or(t.Cores, " "))
	}
}

// TaskAPISocketName is the name of the socket in a task's secrets directory at which the task reaches the API.
const TaskAPISocketName = "api.sock"

// addTokens sets the variables of workload identities. A task has the address of the API only if it has a token.
func (in *envInputs) addTokens(v *layeredVars, d taskDirs) {
	for name, token := range in.tokens {
		if name == model.DefaultIdentity {
			v.setVar("NOMAD_TOKEN", token)
		} else {
			v.setVar("NOMAD_TOKEN_"+name, token)
		}
	}
	if len(in.tokens) > 0 && d.secrets != "" {
		v.setVar("NOMAD_UNIX_ADDR", "unix://"+d.secrets+"/"+TaskAPISocketName)
	}
}

// allocIndex returns the index in the name of an allocation, "job.group[3]".
func allocIndex(name string) string {
	open := strings.LastIndexByte(name, '[')
	if open < 0 || !strings.HasSuffix(name, "]") {
		return ""
	}
	index := name[open+1 : len(name)-1]
	if _, err := strconv.ParseUint(index, 10, 31); err != nil {
		return ""
	}
	return index
}

func (in *envInputs) addGroupPorts(v *layeredVars) {
	for _, p := range in.alloc.Ports {
		host := strconv.Itoa(p.Value)
		inside := host
		if p.To > 0 {
			inside = strconv.Itoa(p.To)
		}
		addr := net.JoinHostPort(p.HostIP, host)

		v.setVar("NOMAD_IP_"+p.Label, p.HostIP)
		v.setVar("NOMAD_PORT_"+p.Label, inside)
		v.setVar("NOMAD_ADDR_"+p.Label, addr)
		v.setVar("NOMAD_HOST_PORT_"+p.Label, host)
		v.setRawAndCleanName("NOMAD_HOST_IP_"+p.Label, p.HostIP)
		v.setRawAndCleanName("NOMAD_HOST_ADDR_"+p.Label, addr)
		v.setRawAndCleanName("NOMAD_ALLOC_PORT_"+p.Label, inside)
		if n := in.alloc.Network; n != nil {
			v.setRawAndCleanName("NOMAD_ALLOC_INTERFACE_"+p.Label, n.Interface)
			v.setRawAndCleanName("NOMAD_ALLOC_IP_"+p.Label, n.Address)
			v.setRawAndCleanName("NOMAD_ALLOC_ADDR_"+p.Label, net.JoinHostPort(n.Address, inside))
		}
	}
}

// addTaskPorts sets the ports of the deprecated networks of single tasks: the ports of this task, and
// under longer names the ports of other tasks.
func (in *envInputs) addTaskPorts(v *layeredVars) {
	for _, task := range slices.Sorted(maps.Keys(in.alloc.TaskPorts)) {
		for _, p := range in.alloc.TaskPorts[task] {
			host := strconv.Itoa(p.Value)
			addr := net.JoinHostPort(p.HostIP, host)
			if task != in.task.Name {
				suffix := task + "_" + p.Label
				v.setVar("NOMAD_IP_"+suffix, p.HostIP)
				v.setVar("NOMAD_PORT_"+suffix, host)
				v.setVar("NOMAD_ADDR_"+suffix, addr)
				continue
			}
			inside := host
			if mapped := in.driverPorts[p.Label]; mapped > 0 {
				inside = strconv.Itoa(mapped)
			}
			family := "NOMAD_IPv4_"
			if strings.Contains(p.HostIP, ":") {
				family = "NOMAD_IPv6_"
			}
			v.setVar("NOMAD_IP_"+p.Label, p.HostIP)
			v.setRawAndCleanName(family+p.Label, p.HostIP)
			v.setVar("NOMAD_PORT_"+p.Label, inside)
			v.setVar("NOMAD_HOST_PORT_"+p.Label, host)
			v.setVar("NOMAD_ADDR_"+p.Label, addr)
		}
	}
}

// setRawAndCleanName sets a variable under its name as written, as Nomad does, and under
// the name in which invalid characters are replaced.
func (v *layeredVars) setRawAndCleanName(key, value string) {
	v.env[key] = value
	v.env[cleanVarName(key)] = value
}

// mergedMeta merges the meta of job, group and task; the task has the highest precedence.
func (in *envInputs) mergedMeta() map[string]string {
	meta := make(map[string]string)
	for _, key := range in.alloc.OptionalMeta {
		meta[key] = ""
	}
	maps.Copy(meta, in.alloc.JobMeta)
	maps.Copy(meta, in.alloc.GroupMeta)
	maps.Copy(meta, in.task.Meta)
	return meta
}

type keyValue struct{ key, value string }

// metaVars returns two variables for each meta key, in upper case and as written.
// Variables of lower precedence come first: a key as written overrides a key that is only
// equal in upper case.
func metaVars(meta map[string]string, name func(string) string) []keyValue {
	keys := slices.Sorted(maps.Keys(meta))
	list := make([]keyValue, 0, 2*len(keys))
	for _, key := range keys {
		list = append(list, keyValue{"NOMAD_META_" + strings.ToUpper(name(key)), meta[key]})
	}
	for _, key := range keys {
		list = append(list, keyValue{"NOMAD_META_" + name(key), meta[key]})
	}
	return list
}
