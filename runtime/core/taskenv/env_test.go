package taskenv

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

func testNode() Node {
	return Node{
		NodeFacts: model.NodeFacts{
			ID: "node-id", Name: "box", Datacenter: "dc1", Region: "global", Pool: "default",
			Attributes: map[string]string{"kernel.name": "linux", "cpu.arch": "amd64", "driver.mock": "1", "driver.mock.version": "2"},
			Meta:       map[string]string{"rack": "r1"},
		},
		ParentCgroup: "nomad.slice",
	}
}

func testAlloc() Alloc {
	return Alloc{
		ID: "5a1ad3b8-0c2c-7d5e-3f4d-8d4f2a1b9c0e", Name: "my[job].web[3]", Namespace: "default",
		JobID: "my[job]", JobName: "My Job", Group: "web",
	}
}

const allocPath = "/a/5a1ad3b8-0c2c-7d5e-3f4d-8d4f2a1b9c0e"

func testDir() hook.TaskDir {
	return hook.TaskDir{
		AllocDir: allocPath, Dir: allocPath + "/app", SharedAllocDir: allocPath + "/alloc", LocalDir: allocPath + "/app/local", SecretsDir: allocPath + "/app/secrets",
		UnveiledAllocDir: "/m/alloc", UnveiledTaskDir: "/m/local", UnveiledSecretsDir: "/m/secrets",
	}
}

// expectVars checks single variables; "-" means the variable must be absent.
func expectVars(t *testing.T, e *Env, want map[string]string) {
	t.Helper()
	got := e.Vars()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		value, ok := got[key]
		switch {
		case want[key] == "-" && ok:
			t.Errorf("%s = %q, want none", key, value)
		case want[key] != "-" && (!ok || value != want[key]):
			t.Errorf("%s = %q, %v, want %q", key, value, ok, want[key])
		}
	}
}

func TestBuiltinVariables(t *testing.T) {
	b := NewBuilder(testNode(), testAlloc(), Task{Name: "app", CPUMHz: 500, MemoryMB: 256})
	b.SetDirs(testDir(), driver.FSIsolationNone)
	expectVars(t, b.Build(), map[string]string{
		"NOMAD_ALLOC_DIR": allocPath + "/alloc", "NOMAD_TASK_DIR": allocPath + "/app/local", "NOMAD_SECRETS_DIR": allocPath + "/app/secrets",
		"NOMAD_ALLOC_ID": "5a1ad3b8-0c2c-7d5e-3f4d-8d4f2a1b9c0e", "NOMAD_SHORT_ALLOC_ID": "5a1ad3b8",
		"NOMAD_ALLOC_NAME": "my[job].web[3]", "NOMAD_ALLOC_INDEX": "3",
		"NOMAD_TASK_NAME": "app", "NOMAD_GROUP_NAME": "web", "NOMAD_JOB_ID": "my[job]", "NOMAD_JOB_NAME": "My Job",
		"NOMAD_JOB_PARENT_ID": "-", "NOMAD_DC": "dc1", "NOMAD_REGION": "global", "NOMAD_NAMESPACE": "default",
		"NOMAD_PARENT_CGROUP": "nomad.slice",
		"NOMAD_CPU_LIMIT":     "500", "NOMAD_MEMORY_LIMIT": "256", "NOMAD_MEMORY_MAX_LIMIT": "-", "NOMAD_CPU_CORES": " ",
	})

	alloc := testAlloc()
	alloc.ParentJobID = "parent"
	b.SetAlloc(alloc, Task{Name: "app", ReservedCoresCPUSet: "0-1,3", MemoryMaxMB: -1})
	expectVars(t, b.Build(), map[string]string{
		"NOMAD_CPU_LIMIT": "-", "NOMAD_MEMORY_LIMIT": "-", "NOMAD_MEMORY_MAX_LIMIT": "-1", "NOMAD_CPU_CORES": "0-1,3",
		"NOMAD_JOB_PARENT_ID": "parent",
	})
}

func TestAllocIndex(t *testing.T) {
	for name, want := range map[string]string{
		"job.group[0]": "0", "job.group[12]": "12", "a[1].b[2]": "2",
		"": "", "job.group": "", "job.group[]": "", "job.group[x]": "", "job.group[-1]": "", "job.group[1": "",
	} {
		if got := allocIndexFromName(name); got != want {
			t.Errorf("index of %q = %q, want %q", name, got, want)
		}
	}
}

func TestDirsByIsolation(t *testing.T) {
	b := NewBuilder(testNode(), testAlloc(), Task{Name: "app"})
	expectVars(t, b.Build(), map[string]string{"NOMAD_ALLOC_DIR": "-", "NOMAD_TASK_DIR": "-", "NOMAD_SECRETS_DIR": "-"})
	inside := [3]string{"/alloc", "/local", "/secrets"}
	for isolation, want := range map[driver.FSIsolation][3]string{
		driver.FSIsolationNone:   {allocPath + "/alloc", allocPath + "/app/local", allocPath + "/app/secrets"},
		driver.FSIsolationChroot: inside,
		driver.FSIsolationImage:  inside,
		driver.FSIsolationUnveil: {"/m/alloc", "/m/local", "/m/secrets"},
	} {
		b.SetDirs(testDir(), isolation)
		expectVars(t, b.Build(), map[string]string{"NOMAD_ALLOC_DIR": want[0], "NOMAD_TASK_DIR": want[1], "NOMAD_SECRETS_DIR": want[2]})
	}
}

func TestGroupPorts(t *testing.T) {
	alloc := testAlloc()
	alloc.Ports = []Port{
		{Label: "http", HostPort: 20001, AllocPort: 8080, HostIP: "192.0.2.2"},
		{Label: "my-port", HostPort: 20002, HostIP: "192.0.2.2"},
		{Label: "d.ot", HostPort: 20003, AllocPort: -1, HostIP: "2001:db8::1"},
	}
	task := Task{Name: "app", EnvBlock: map[string]string{
		"RAW": "${NOMAD_ADDR_my-port} ${NOMAD_HOST_IP_my-port}", "CLEAN": "${NOMAD_ADDR_my_port} ${NOMAD_HOST_IP_my_port}",
	}}
	b := NewBuilder(testNode(), alloc, task)
	expectVars(t, b.Build(), map[string]string{
		"NOMAD_PORT_http": "8080", "NOMAD_ALLOC_PORT_http": "8080", "NOMAD_HOST_PORT_http": "20001",
		"NOMAD_IP_http": "192.0.2.2", "NOMAD_HOST_IP_http": "192.0.2.2",
		"NOMAD_ADDR_http": "192.0.2.2:20001", "NOMAD_HOST_ADDR_http": "192.0.2.2:20001",
		// Addresses have both label spellings; Nomad has only the raw one (RS-075).
		"NOMAD_PORT_my_port": "20002", "NOMAD_PORT_my-port": "-", "NOMAD_ADDR_my_port": "192.0.2.2:20002",
		"NOMAD_HOST_IP_my-port": "192.0.2.2", "NOMAD_HOST_IP_my_port": "192.0.2.2",
		"NOMAD_HOST_ADDR_my-port": "192.0.2.2:20002", "NOMAD_HOST_ADDR_my_port": "192.0.2.2:20002",
		"NOMAD_ALLOC_PORT_my-port": "20002", "NOMAD_ALLOC_PORT_my_port": "20002",
		"NOMAD_PORT_d.ot": "20003", "NOMAD_ADDR_d.ot": "[2001:db8::1]:20003",
		"NOMAD_ALLOC_IP_http": "-", "NOMAD_ALLOC_ADDR_http": "-", "NOMAD_ALLOC_INTERFACE_http": "-",
		"RAW": "192.0.2.2:20002 192.0.2.2", "CLEAN": "192.0.2.2:20002 192.0.2.2",
	})
	for _, name := range []string{"NOMAD_PORT_my-port", "NOMAD_PORT_my_port"} {
		if got := b.Build().ReplaceReferences("${" + name + "}"); got != "20002" {
			t.Errorf("Replace of %s = %q", name, got)
		}
	}

	alloc.Network = &NetworkStatus{Interface: "eth0", Address: "172.26.64.2"}
	b.SetAlloc(alloc, task)
	expectVars(t, b.Build(), map[string]string{
		"NOMAD_ALLOC_INTERFACE_http": "eth0", "NOMAD_ALLOC_IP_http": "172.26.64.2", "NOMAD_ALLOC_ADDR_http": "172.26.64.2:8080",
		"NOMAD_ALLOC_ADDR_my-port": "172.26.64.2:20002", "NOMAD_ALLOC_ADDR_my_port": "172.26.64.2:20002",
	})
}

func TestTaskPorts(t *testing.T) {
	alloc := testAlloc()
	alloc.PortsByTask = map[string][]Port{
		"app": {{Label: "web", HostPort: 21000, HostIP: "192.0.2.2"}, {Label: "v6", HostPort: 21001, HostIP: "::1"}},
		"db":  {{Label: "sql-1", HostPort: 22000, HostIP: "192.0.2.2"}},
	}
	b := NewBuilder(testNode(), alloc, Task{Name: "app"})
	b.SetDriverPortByLabel(map[string]int{"web": 80})
	expectVars(t, b.Build(), map[string]string{
		"NOMAD_IP_web": "192.0.2.2", "NOMAD_IPv4_web": "192.0.2.2", "NOMAD_IPv6_web": "-",
		"NOMAD_PORT_web": "80", "NOMAD_HOST_PORT_web": "21000", "NOMAD_ADDR_web": "192.0.2.2:21000",
		"NOMAD_IPv6_v6": "::1", "NOMAD_ADDR_v6": "[::1]:21001", "NOMAD_PORT_v6": "21001",
		"NOMAD_IP_db_sql_1": "192.0.2.2", "NOMAD_PORT_db_sql_1": "22000", "NOMAD_ADDR_db_sql_1": "192.0.2.2:22000",
		"NOMAD_IP_app_web": "-", "NOMAD_IP_sql_1": "-",
	})
}

func TestMeta(t *testing.T) {
	alloc := testAlloc()
	alloc.OptionalMetaKeys = []string{"opt", "given"}
	alloc.JobMeta = map[string]string{"level": "job", "j": "1", "given": "yes", "my-key": "v", "d.ot": "d"}
	alloc.GroupMeta = map[string]string{"level": "group", "g": "2", "${attr.kernel.name}-x": "key"}
	b := NewBuilder(testNode(), alloc, Task{Name: "app", Meta: map[string]string{
		"level": "task", "host": "${node.unique.name}", "id": "${NOMAD_SHORT_ALLOC_ID}", "other": "<${NOMAD_META_host}>", "unknown": "${meta.x}",
	}})
	expectVars(t, b.Build(), map[string]string{
		"NOMAD_META_level": "task", "NOMAD_META_LEVEL": "task", "NOMAD_META_j": "1", "NOMAD_META_g": "2",
		"NOMAD_META_opt": "", "NOMAD_META_OPT": "", "NOMAD_META_given": "yes",
		"NOMAD_META_my_key": "v", "NOMAD_META_MY_KEY": "v", "NOMAD_META_my-key": "-", // RS-075
		"NOMAD_META_d.ot": "d", "NOMAD_META_linux_x": "key",
		"NOMAD_META_host": "box", "NOMAD_META_id": "5a1ad3b8", "NOMAD_META_other": "<box>", "NOMAD_META_unknown": "${meta.x}",
	})
}

// If two keys' names become equal, the key written that way has precedence.
func TestKeysThatBecomeTheSame(t *testing.T) {
	alloc := testAlloc()
	alloc.JobMeta = map[string]string{"a-b": "dash", "a_b": "underscore", "a+b": "plus", "x+y": "1", "x-y": "2", "low": "l", "LOW": "u"}
	task := Task{Name: "app", EnvBlock: map[string]string{"NOMAD_META_e-f": "dash", "NOMAD_META_e_f": "underscore", "PLAIN-KEY": "kept"}}
	for range 20 {
		expectVars(t, NewBuilder(testNode(), alloc, task).Build(), map[string]string{
			"NOMAD_META_a_b": "underscore", "NOMAD_META_x_y": "2", "NOMAD_META_low": "l", "NOMAD_META_LOW": "u",
			"NOMAD_META_e_f": "underscore", "PLAIN-KEY": "kept",
		})
	}
}

// Each source overrides the previous ones.
func TestPrecedence(t *testing.T) {
	b := NewBuilder(testNode(), testAlloc(), Task{Name: "app"})
	b.SetHostEnv(map[string]string{"NOMAD_TASK_NAME": "host", "X": "host", "NOMAD_META_a-b": "host"})
	alloc := testAlloc()
	alloc.JobMeta = map[string]string{"a-b": "meta"}
	expectVars(t, b.Build(), map[string]string{"NOMAD_TASK_NAME": "app", "X": "host", "NOMAD_META_a_b": "host"})
	b.SetAlloc(alloc, Task{Name: "app"})
	expectVars(t, b.Build(), map[string]string{"NOMAD_META_a_b": "meta"})

	b.SetAlloc(alloc, Task{Name: "app", EnvBlock: map[string]string{"X": "task", "NOMAD_TASK_NAME": "override"}})
	expectVars(t, b.Build(), map[string]string{"X": "task", "NOMAD_TASK_NAME": "override"})

	// RS-056
	b.SetHookEnv("A", map[string]string{"X": "1", "Y": "1"})
	expectVars(t, b.Build(), map[string]string{"X": "1"})
	b.SetHookEnv("B", map[string]string{"X": "2", "Z": "${Y}${node.datacenter}"})
	expectVars(t, b.Build(), map[string]string{"X": "2", "Y": "1", "Z": "1dc1"})
	b.SetHookEnv("A", map[string]string{"X": "3"})
	expectVars(t, b.Build(), map[string]string{"X": "2", "Y": "-", "Z": "${Y}dc1"})
	b.SetHookEnv("B", nil)
	expectVars(t, b.Build(), map[string]string{"X": "3", "Z": "-"})

	b.SetTemplateEnv(map[string]string{"X": "${node.datacenter}", "NOMAD_META_a-b": "template"})
	expectVars(t, b.Build(), map[string]string{"X": "${node.datacenter}", "NOMAD_META_a_b": "template"})
}

// RS-074
func TestHostEnv(t *testing.T) {
	host := FilterHostEnv([]string{"HOSTVAR=h", "AWS_SECRET_ACCESS_KEY=s", "EMPTY=", "EQ=a=b", "=odd", "noequals", "REF=${HOSTVAR}"}, nil, nil)
	b := NewBuilder(testNode(), testAlloc(), Task{Name: "app", EnvBlock: map[string]string{"T": "<${HOSTVAR}>", "PATH": "/mine:${HOSTVAR}"}})
	b.SetHostEnv(host)
	expectVars(t, b.Build(), map[string]string{
		"HOSTVAR": "h", "AWS_SECRET_ACCESS_KEY": "-", "EMPTY": "", "EQ": "a=b", "": "-", "noequals": "-",
		"REF": "h", "T": "<h>", "PATH": "/mine:h",
	})
	b.SetDirs(testDir(), driver.FSIsolationImage)
	expectVars(t, b.Build(), map[string]string{"HOSTVAR": "-", "T": "<${HOSTVAR}>"})

	environ := []string{"A=1", "B=2", "NOMAD_TOKEN=x"}
	for _, tt := range []struct{ deny, allow, want []string }{
		{[]string{"A"}, nil, []string{"B", "NOMAD_TOKEN"}},
		{[]string{}, nil, []string{"A", "B", "NOMAD_TOKEN"}},
		{nil, []string{"A", "NOMAD_TOKEN", "C"}, []string{"A"}},
		{[]string{"A"}, []string{"A", "B"}, []string{"B"}},
		{nil, []string{}, nil},
	} {
		if got := slices.Sorted(maps.Keys(FilterHostEnv(environ, tt.deny, tt.allow))); !slices.Equal(got, tt.want) {
			t.Errorf("HostEnv(%v, %v): %v, want %v", tt.deny, tt.allow, got, tt.want)
		}
	}
}

func TestTasksInheritNoSecret(t *testing.T) {
	environ := []string{"HOSTVAR=h", "NOMAD_TOKEN=x", "GOOGLE_OAUTH_ACCESS_TOKEN=x"}
	for _, name := range base.DefaultEnvDenylist() {
		environ = append(environ, name+"=x")
	}
	if got := FilterHostEnv(environ, nil, nil); len(got) != 1 || got["HOSTVAR"] != "h" {
		t.Errorf("inherited: %v", got)
	}
}

// RS-073
func TestReferences(t *testing.T) {
	b := NewBuilder(testNode(), testAlloc(), Task{Name: "app", EnvBlock: map[string]string{
		"A": "${NOMAD_ALLOC_ID}", "B": "${node.unique.name}", "C": "${attr.kernel.name}", "D": "${nope.nope}",
		"E": "${meta.rack}${node.region}${node.pool}${node.unique.id}", "F": "[${node.class}]", "G": "${attr.driver.mock}",
	}})
	expectVars(t, b.Build(), map[string]string{
		"A": "5a1ad3b8-0c2c-7d5e-3f4d-8d4f2a1b9c0e", "B": "box", "C": "linux", "D": "${nope.nope}",
		"E": "r1globaldefaultnode-id", "F": "[]", "G": "1",
	})
}

func TestReplace(t *testing.T) {
	b := NewBuilder(testNode(), testAlloc(), Task{Name: "app", EnvBlock: map[string]string{"X": "x", "REF": "${Y}", "a..b": "dots"}})
	e := b.Build()
	for text, want := range map[string]string{
		"":                  "",
		"plain":             "plain",
		"${X}":              "x",
		"a${X}b${X}c":       "axbxc",
		"${ X }":            "${ X }",
		`${env["X"]}`:       `${env["X"]}`,
		"$${X}":             "$x",
		"${}":               "${}",
		"${X":               "${X",
		"${${X}}":           "${x}",
		"${X}}":             "x}",
		"${a..b}":           "dots",
		"${NOPE} ${X}":      "${NOPE} x",
		"${REF}":            "${Y}", // replaced text is not expanded again
		"$X {X} %X%":        "$X {X} %X%",
		"é${X}é":            "éxé",
		"${node.attr.x}":    "${node.attr.x}",
		"${meta.rack}":      "r1",
		"\x00${X}\xff${X}$": "\x00x\xffx$",
	} {
		if got := e.ReplaceReferences(text); got != want {
			t.Errorf("Replace(%q) = %q, want %q", text, got, want)
		}
	}
}

// Entries in one block may refer to each other in any order; a cyclic reference has the value from
// the layers with lower precedence.
func TestEntriesThatReferToEachOther(t *testing.T) {
	for _, c := range []struct {
		name string
		host map[string]string
		env  map[string]string
		want map[string]string
	}{
		{
			"a chain, against the order of names",
			nil, map[string]string{"A": "${B}a", "B": "${C}b", "C": "c"}, map[string]string{"A": "cba", "B": "cb"},
		},
		{
			"a variable that extends what is below it",
			map[string]string{"PATH": "/bin"}, map[string]string{"PATH": "/x:${PATH}", "COPY": "${PATH}"},
			map[string]string{"PATH": "/x:/bin", "COPY": "/x:/bin"},
		},
		{
			"a variable that refers to itself, with nothing below",
			nil, map[string]string{"A": "${A}!"}, map[string]string{"A": "${A}!"},
		},
		{
			"a circle stays as it is",
			nil, map[string]string{"A": "${B}a", "B": "${A}b", "C": "${A}c"}, map[string]string{"A": "${B}a", "B": "${A}b", "C": "${B}ac"},
		},
		{
			"a circle with something below",
			map[string]string{"A": "0"}, map[string]string{"A": "${B}a", "B": "${A}b"}, map[string]string{"A": "${B}a", "B": "0b"},
		},
		{
			"two circles that touch, and a tail",
			nil, map[string]string{"A": "${B}", "B": "${A}${C}", "C": "${D}", "D": "${C}${E}", "E": "e", "F": "${B}"},
			map[string]string{"A": "${B}", "B": "${A}${D}", "C": "${D}", "D": "${C}e", "F": "${A}${D}"},
		},
		{
			"through the other spelling of a name",
			nil, map[string]string{"A": "${NOMAD_PORT_x-y}", "NOMAD_PORT_x-y": "${B}", "B": "b"}, map[string]string{"A": "b", "NOMAD_PORT_x_y": "b"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 10 { // map iteration is random
				b := NewBuilder(testNode(), testAlloc(), Task{Name: "app", EnvBlock: c.env})
				b.SetHostEnv(c.host)
				expectVars(t, b.Build(), c.want)
			}
		})
	}
}

// References that double the text at each step, or repeat a long one, end at a limit; so does a
// single text.
func TestExpansionIsBounded(t *testing.T) {
	env := map[string]string{"V000": strings.Repeat("x", 1<<10)}
	for i := 1; i < 200; i++ {
		env[fmt.Sprintf("V%03d", i)] = fmt.Sprintf("${V%03d}${V%03d}", i-1, i-1)
	}
	e := NewBuilder(testNode(), testAlloc(), Task{Name: "app", EnvBlock: env}).Build()
	total := 0
	for _, kv := range e.SortedKeyValues() {
		total += len(kv)
	}
	if total > 2*maxInsertedBytes {
		t.Errorf("the environment has %d bytes", total)
	}
	if got := e.Vars()["V003"]; got != strings.Repeat("x", 8<<10) {
		t.Errorf("below the bound, V003 has %d bytes", len(got))
	}

	long := NewBuilder(testNode(), testAlloc(), Task{Name: "app", EnvBlock: map[string]string{"L": strings.Repeat("x", 1<<20)}}).Build()
	text := strings.Repeat("${L}", 1000)
	if got := len(long.ReplaceReferences(text)); got > maxInsertedBytes+len(text) {
		t.Errorf("a text has become %d bytes long", got)
	}

	deep := make(map[string]string)
	for i := range 20_000 {
		deep[fmt.Sprint("D", i)] = fmt.Sprintf("${D%d}", i+1)
	}
	deep["D20000"] = "end"
	if got := NewBuilder(testNode(), testAlloc(), Task{Name: "app", EnvBlock: deep}).Build().ReplaceReferences("${D0}"); got != "end" {
		t.Errorf("the end of a long chain = %q", got)
	}
}

func TestEnvIsImmutable(t *testing.T) {
	hookEnv := map[string]string{"H": "1"}
	b := NewBuilder(testNode(), testAlloc(), Task{Name: "app"})
	b.SetHookEnv("h", hookEnv)
	e := b.Build()
	hookEnv["H"] = "2"
	b.SetHookEnv("h", map[string]string{"H": "4"})
	b.SetHookEnv("i", map[string]string{"I": "1"})
	expectVars(t, e, map[string]string{"H": "1", "I": "-"})
	list := e.SortedKeyValues()
	if !slices.IsSorted(list) || len(list) != len(e.Vars()) || !slices.Contains(list, "H=1") {
		t.Errorf("List = %q", list)
	}
}

func TestUnchangedHookVariablesKeepTheBuiltEnv(t *testing.T) {
	b := NewBuilder(testNode(), testAlloc(), Task{Name: "app"})
	b.SetHookEnv("h", map[string]string{"H": "1"})
	e := b.Build()
	b.SetHookEnv("without variables", nil)
	b.SetHookEnv("h", map[string]string{"H": "1"})
	if b.Build() != e {
		t.Error("the environment was built again")
	}
	b.SetHookEnv("h", nil)
	expectVars(t, b.Build(), map[string]string{"H": "-"})
}

func TestConfigVars(t *testing.T) {
	node := testNode()
	node.Attributes["a..b"] = "bad"
	b := NewBuilder(node, testAlloc(), Task{Name: "app", EnvBlock: map[string]string{
		"X": "x", "a.b.c": "deep", "a.b": "shadowed", "..bad": "b", "end.": "e", "env": "mine", "node": "mine", "dash-ed": "d",
		strings.Repeat("d.", 200) + "d": "too deep",
	}})
	vars := b.Build().TaskConfigHCLVars()
	path := func(names ...string) cty.Value {
		v := vars[names[0]]
		for _, name := range names[1:] {
			switch {
			case v == cty.NilVal:
				return v
			case v.Type().IsObjectType() && v.Type().HasAttribute(name):
				v = v.GetAttr(name)
			case v.Type().IsMapType() && v.HasIndex(cty.StringVal(name)).True():
				v = v.Index(cty.StringVal(name))
			default:
				return cty.NilVal
			}
		}
		return v
	}
	for name, want := range map[string]string{
		"X": "x", "dash-ed": "d", "NOMAD_TASK_NAME": "app", "a/b/c": "deep",
		"env/X": "x", "env/a.b": "shadowed", "env/a.b.c": "deep", "env/..bad": "b", "env/end.": "e", "env/env": "mine",
		"node/unique/id": "node-id", "node/unique/name": "box", "node/datacenter": "dc1", "node/region": "global", "node/class": "", "node/pool": "default",
		"attr/kernel/name": "linux", "node/attr/kernel/name": "linux", "meta/rack": "r1", "node/meta/rack": "r1",
		"attr/driver/mock/version": "2",
	} {
		if got := path(strings.Split(name, "/")...); got == cty.NilVal || got.Type() != cty.String || got.AsString() != want {
			t.Errorf("%s = %#v, want %q", name, got, want)
		}
	}
	if got := path("attr", "driver", "mock"); !got.Type().IsObjectType() {
		t.Errorf("a name that others begin with is %#v, want the object", got)
	}
	for _, name := range []string{"", "end", "d"} {
		if _, ok := vars[name]; ok {
			t.Errorf("there is a variable %q", name)
		}
	}
	bare := NewBuilder(Node{}, Alloc{}, Task{}).Build().TaskConfigHCLVars()
	if !bare["env"].Type().IsMapType() || bare["env"].LengthInt() != 0 {
		t.Errorf("env without variables = %#v", bare["env"])
	}
}

// The HCL engine evaluates expressions with the TaskConfigHCLVars variables.
func TestConfigVarsInHCL(t *testing.T) {
	alloc := testAlloc()
	alloc.Ports = []Port{{Label: "http", HostPort: 20446, HostIP: "192.0.2.2"}, {Label: "my-port", HostPort: 20447, HostIP: "192.0.2.2"}}
	b := NewBuilder(testNode(), alloc, Task{Name: "app", EnvBlock: map[string]string{"X": "x", "..bad": "dots", "F": "${UNKNOWN}"}})
	b.SetHostEnv(map[string]string{"PATH": "/bin"})
	e := b.Build()
	spec := hclspec.Object(map[string]*hclspec.Spec{"arg": hclspec.Attr("arg", "string", false)})
	for _, c := range []struct{ text, want, fault string }{
		{text: "${X}", want: "x"},
		{text: "${ X }", want: "x"},
		{text: `${env["X"]}${env["..bad"]}`, want: "xdots"},
		{text: "${PATH}", want: "/bin"},
		{text: "$${X}", want: "${X}"},
		{text: "${2+3}", want: "5"},
		{text: `${upper("abc")}`, want: "ABC"},
		{text: "${NOMAD_PORT_http + 1}", want: "20447"},
		{text: "${NOMAD_PORT_my_port}", want: "20447"},
		{text: "${node.unique.name} ${attr.kernel.name} ${node.attr.kernel.name} ${meta.rack} ${node.meta.rack}", want: "box linux linux r1 r1"},
		{text: "${F}", want: "${UNKNOWN}"}, // a variable's value is not expanded again
		{text: "${UNKNOWN}", fault: `Unknown variable: There is no variable named "UNKNOWN".`},
		{text: "${attr.nope}", fault: `Unsupported attribute: This object does not have an attribute named "nope".`},
		{text: "${NOMAD_PORT_my-port}", fault: `Did you mean "NOMAD_PORT_my_port"?`},
		{text: "${attr.driver.mock}", fault: "string required, but have object"},
	} {
		value, diags := block.Decode(spec, map[string]any{"arg": c.text}, e.TaskConfigHCLVars)
		var diagTexts []string
		for _, d := range diags {
			diagTexts = append(diagTexts, d.Summary+": "+d.Detail)
		}
		fault := strings.Join(diagTexts, "\n")
		switch {
		case c.fault != "" && !strings.Contains(fault, c.fault):
			t.Errorf("%s: fault %q, want %q", c.text, fault, c.fault)
		case c.fault == "" && fault != "":
			t.Errorf("%s: %s", c.text, fault)
		case c.fault == "" && value.GetAttr("arg").AsString() != c.want:
			t.Errorf("%s = %#v, want %q", c.text, value.GetAttr("arg"), c.want)
		}
	}
}

// An environment must not copy data shared by all allocations.
func TestEnvSharesTheNode(t *testing.T) {
	node := testNode()
	for i := range 1000 {
		node.Attributes[fmt.Sprint("attribute.", i)] = strings.Repeat("x", 100)
	}
	allocs := testing.AllocsPerRun(10, func() { NewBuilder(node, testAlloc(), Task{Name: "app"}).Build() })
	if allocs > 150 {
		t.Errorf("an environment takes %v allocations on a node of 1000 attributes", allocs)
	}
}

func FuzzReplace(f *testing.F) {
	for _, seed := range []string{"${X}", "$${X}", "${${X}}", "${NOMAD_PORT_my-port}", "${attr.kernel.name}", "${a..b}", "${ X }", "${"} {
		f.Add(seed, "value", "${X}")
	}
	f.Fuzz(func(t *testing.T, text, x, y string) {
		alloc := testAlloc()
		alloc.JobMeta = map[string]string{y: x, x: y}
		alloc.Ports = []Port{{Label: x, HostPort: 1, HostIP: y}}
		env := map[string]string{"X": x, "Y": y, "Z": "${X}${Y}", x: text, text: y}
		build := func() *Env {
			b := NewBuilder(testNode(), alloc, Task{Name: "app", EnvBlock: env})
			b.SetDirs(testDir(), driver.FSIsolationChroot)
			return b.Build()
		}
		e := build()
		if again := build(); !slices.Equal(e.SortedKeyValues(), again.SortedKeyValues()) {
			t.Fatalf("two builds differ:\n%q\n%q", e.SortedKeyValues(), again.SortedKeyValues())
		}
		got := e.ReplaceReferences(text)
		if len(got) > maxInsertedBytes+len(text) {
			t.Fatalf("%d bytes became %d", len(text), len(got))
		}
		if !strings.Contains(got, "${") && e.ReplaceReferences(got) != got {
			t.Fatalf("Replace(%q) = %q, and then %q", text, got, e.ReplaceReferences(got))
		}
		if !strings.Contains(text, "${") && got != text {
			t.Fatalf("Replace(%q) = %q", text, got)
		}
		e.TaskConfigHCLVars()
	})
}

func BenchmarkBuild(b *testing.B) {
	alloc := testAlloc()
	alloc.Ports = []Port{{Label: "http", HostPort: 20001, HostIP: "192.0.2.2"}}
	builder := NewBuilder(testNode(), alloc, Task{Name: "app", EnvBlock: map[string]string{"A": "${NOMAD_ADDR_http}", "B": "${A}/x"}})
	host := map[string]string{}
	for i := range 40 {
		host[fmt.Sprint("HOST_", i)] = "value"
	}
	builder.SetHostEnv(host)
	b.Run("env", func(b *testing.B) {
		for b.Loop() {
			builder.SetHostEnv(host)
			builder.Build()
		}
	})
	env := builder.Build()
	b.Run("config", func(b *testing.B) {
		for b.Loop() {
			env.TaskConfigHCLVars()
		}
	})
}
