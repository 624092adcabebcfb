package taskenv

import (
	"cmp"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// visibleTaskDirs are the task's directory paths in its environment variables.
type visibleTaskDirs struct{ allocPath, localPath, secretsPath string }

// dirsAsSeenByTask returns the paths at which the task sees its directories, which depend on the driver's
// isolation.
func (e *envInputs) dirsAsSeenByTask() visibleTaskDirs {
	if e.taskDir.AllocDir == "" {
		return visibleTaskDirs{} // there is no task, or it has no directories yet
	}
	switch e.isolation {
	case driver.FSIsolationChroot, driver.FSIsolationImage:
		return visibleTaskDirs{allocPath: "/alloc", localPath: "/local", secretsPath: "/secrets"}
	case driver.FSIsolationUnveil:
		return visibleTaskDirs{allocPath: e.taskDir.UnveiledAllocDir, localPath: e.taskDir.UnveiledTaskDir, secretsPath: e.taskDir.UnveiledSecretsDir}
	}
	return visibleTaskDirs{allocPath: e.taskDir.SharedAllocDir, localPath: e.taskDir.LocalDir, secretsPath: e.taskDir.SecretsDir}
}

// scratchVars has maps for building environments. A map made before the number of variables is known may be twice as large
// as one that fits, and a task's environment stays in memory as long as the task runs.
var scratchVars = sync.Pool{New: func() any { return make(map[string]string) }}

// buildEnv returns an environment's variables. It adds them in ascending precedence.
func buildEnv(in *envInputs) map[string]string {
	scratch := scratchVars.Get().(map[string]string)
	defer func() {
		clear(scratch)
		scratchVars.Put(scratch)
	}()
	v := &layeredVars{vars: scratch, inputs: in, remainingInsertBytes: maxInsertedBytes}
	in.addNomadVars(v, in.dirsAsSeenByTask())

	meta := make(map[string]string)
	for _, kv := range metaVars(in.mergedMeta(), func(key string) string { return expandReferences(key, &v.remainingInsertBytes, v.lookupReference) }) {
		meta[kv.key] = kv.value
	}
	v.addLayer(meta)

	if in.isolation != driver.FSIsolationImage {
		v.addLayer(hostVarsNotIn(in.hostEnv, v.vars))
	}
	v.addLayer(in.task.EnvBlock)
	for _, h := range in.hookEnvs {
		v.addLayer(h.env)
	}
	for key, value := range cleanPortAndMetaVarNames(in.templateEnv) {
		v.vars[key] = value
	}
	vars := make(map[string]string, len(v.vars))
	maps.Copy(vars, v.vars)
	return vars
}

// hostVarsNotIn returns the host variables missing from vars. It usually returns hostEnv itself, because vars has none
// of them: a start builds the environment several times, and a copy of hostEnv is as large as the result.
func hostVarsNotIn(hostEnv, vars map[string]string) map[string]string {
	exists := func(key, _ string) bool {
		_, ok := vars[cleanPortOrMetaVarName(key)]
		return ok
	}
	for key, value := range hostEnv {
		if exists(key, value) {
			absent := maps.Clone(hostEnv)
			maps.DeleteFunc(absent, exists)
			return absent
		}
	}
	return hostEnv
}

// addNomadVars sets the NOMAD_ variables from the job and the placement, except those from meta blocks.
func (e *envInputs) addNomadVars(v *layeredVars, d visibleTaskDirs) {
	setUnlessEmpty := func(key, value string) {
		if value != "" {
			v.setVar(key, value)
		}
	}
	setUnlessZero := func(key string, n int64) {
		if n != 0 {
			v.setVar(key, strconv.FormatInt(n, 10))
		}
	}

	setUnlessEmpty("NOMAD_ALLOC_DIR", d.allocPath)
	setUnlessEmpty("NOMAD_TASK_DIR", d.localPath)
	setUnlessEmpty("NOMAD_SECRETS_DIR", d.secretsPath)

	a := &e.alloc
	setUnlessEmpty("NOMAD_ALLOC_ID", a.ID)
	setUnlessEmpty("NOMAD_SHORT_ALLOC_ID", a.ID[:min(8, len(a.ID))])
	setUnlessEmpty("NOMAD_ALLOC_NAME", a.Name)
	setUnlessEmpty("NOMAD_ALLOC_INDEX", allocIndexFromName(a.Name))
	setUnlessEmpty("NOMAD_GROUP_NAME", a.Group)
	setUnlessEmpty("NOMAD_JOB_ID", a.JobID)
	setUnlessEmpty("NOMAD_JOB_NAME", a.JobName)
	setUnlessEmpty("NOMAD_JOB_PARENT_ID", a.ParentJobID)
	setUnlessEmpty("NOMAD_NAMESPACE", a.Namespace)
	setUnlessEmpty("NOMAD_DC", e.node.Datacenter)
	setUnlessEmpty("NOMAD_REGION", e.node.Region)
	setUnlessEmpty("NOMAD_PARENT_CGROUP", e.node.ParentCgroup)

	e.addGroupPorts(v)
	e.addTaskPorts(v)
	e.addTokensAndAPIAddress(v, d)

	if t := &e.task; t.Name != "" {
		v.setVar("NOMAD_TASK_NAME", t.Name)
		setUnlessZero("NOMAD_CPU_LIMIT", t.CPUMHz)
		setUnlessZero("NOMAD_MEMORY_LIMIT", t.MemoryMB)
		setUnlessZero("NOMAD_MEMORY_MAX_LIMIT", t.MemoryMaxMB)
		// Without reserved cores, Nomad sets the value to one space, and existing scripts compare with it.
		v.setVar("NOMAD_CPU_CORES", cmp.Or(t.ReservedCoresCPUSet, " "))
	}
}

// TaskAPISocketName is the API socket's name in a task's secrets directory.
const TaskAPISocketName = "api.sock"

// addTokensAndAPIAddress sets the variables for workload identity tokens. Only a task with a token gets the API
// address.
func (e *envInputs) addTokensAndAPIAddress(v *layeredVars, d visibleTaskDirs) {
	for name, token := range e.tokenByIdentity {
		if name == model.DefaultIdentity {
			v.setVar("NOMAD_TOKEN", token)
		} else {
			v.setVar("NOMAD_TOKEN_"+name, token)
		}
	}
	if len(e.tokenByIdentity) > 0 && d.secretsPath != "" {
		v.setVar("NOMAD_UNIX_ADDR", "unix://"+d.secretsPath+"/"+TaskAPISocketName)
	}
}

// allocIndexFromName returns the index in an allocation name: "3" for "job.group[3]". It returns "" for an
// invalid name.
func allocIndexFromName(allocName string) string {
	open := strings.LastIndexByte(allocName, '[')
	if open < 0 || !strings.HasSuffix(allocName, "]") {
		return ""
	}
	index := allocName[open+1 : len(allocName)-1]
	if _, err := strconv.ParseUint(index, 10, 31); err != nil {
		return ""
	}
	return index
}

func (e *envInputs) addGroupPorts(v *layeredVars) {
	for _, p := range e.alloc.Ports {
		host := strconv.Itoa(p.HostPort)
		inside := host
		if p.AllocPort > 0 {
			inside = strconv.Itoa(p.AllocPort)
		}
		addr := net.JoinHostPort(p.HostIP, host)

		v.setVar("NOMAD_IP_"+p.Label, p.HostIP)
		v.setVar("NOMAD_PORT_"+p.Label, inside)
		v.setVar("NOMAD_ADDR_"+p.Label, addr)
		v.setVar("NOMAD_HOST_PORT_"+p.Label, host)
		v.setVarWithRawAndCleanName("NOMAD_HOST_IP_"+p.Label, p.HostIP)
		v.setVarWithRawAndCleanName("NOMAD_HOST_ADDR_"+p.Label, addr)
		v.setVarWithRawAndCleanName("NOMAD_ALLOC_PORT_"+p.Label, inside)
		if n := e.alloc.Network; n != nil {
			v.setVarWithRawAndCleanName("NOMAD_ALLOC_INTERFACE_"+p.Label, n.Interface)
			v.setVarWithRawAndCleanName("NOMAD_ALLOC_IP_"+p.Label, n.Address)
			v.setVarWithRawAndCleanName("NOMAD_ALLOC_ADDR_"+p.Label, net.JoinHostPort(n.Address, inside))
		}
	}
}

// addTaskPorts sets the port variables for the deprecated networks of single tasks. The variables for another task's ports
// contain that task's name.
func (e *envInputs) addTaskPorts(v *layeredVars) {
	for _, task := range slices.Sorted(maps.Keys(e.alloc.PortsByTask)) {
		for _, p := range e.alloc.PortsByTask[task] {
			host := strconv.Itoa(p.HostPort)
			addr := net.JoinHostPort(p.HostIP, host)
			if task != e.task.Name {
				suffix := task + "_" + p.Label
				v.setVar("NOMAD_IP_"+suffix, p.HostIP)
				v.setVar("NOMAD_PORT_"+suffix, host)
				v.setVar("NOMAD_ADDR_"+suffix, addr)
				continue
			}
			inside := host
			if mapped := e.driverPortsByLabel[p.Label]; mapped > 0 {
				inside = strconv.Itoa(mapped)
			}
			family := "NOMAD_IPv4_"
			if strings.Contains(p.HostIP, ":") {
				family = "NOMAD_IPv6_"
			}
			v.setVar("NOMAD_IP_"+p.Label, p.HostIP)
			v.setVarWithRawAndCleanName(family+p.Label, p.HostIP)
			v.setVar("NOMAD_PORT_"+p.Label, inside)
			v.setVar("NOMAD_HOST_PORT_"+p.Label, host)
			v.setVar("NOMAD_ADDR_"+p.Label, addr)
		}
	}
}

// setVarWithRawAndCleanName sets two variables: one with the name as written, as Nomad does, and one with invalid
// characters replaced in the name.
func (v *layeredVars) setVarWithRawAndCleanName(key, value string) {
	v.vars[key] = value
	v.vars[replaceInvalidNameChars(key)] = value
}

// mergedMeta merges job, group and task meta; the task has the highest precedence.
func (e *envInputs) mergedMeta() map[string]string {
	meta := make(map[string]string)
	for _, key := range e.alloc.OptionalMetaKeys {
		meta[key] = ""
	}
	maps.Copy(meta, e.alloc.JobMeta)
	maps.Copy(meta, e.alloc.GroupMeta)
	maps.Copy(meta, e.task.Meta)
	return meta
}

type metaVar struct{ key, value string }

// metaVars returns two variables for each meta key: with the key in upper case, and with the key as written. Variables with
// lower precedence come first: a key as written overrides another key that equals it only in upper case.
func metaVars(meta map[string]string, interpolateKey func(string) string) []metaVar {
	keys := slices.Sorted(maps.Keys(meta))
	list := make([]metaVar, 0, 2*len(keys))
	for _, key := range keys {
		list = append(list, metaVar{"NOMAD_META_" + strings.ToUpper(interpolateKey(key)), meta[key]})
	}
	for _, key := range keys {
		list = append(list, metaVar{"NOMAD_META_" + interpolateKey(key), meta[key]})
	}
	return list
}
