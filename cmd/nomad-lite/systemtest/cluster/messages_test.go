package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/coder/websocket"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// messageTypes are the types of package protocol for the messages of each method, by part.
var messageTypes = map[string]map[string]any{
	protocol.MethodPing:               call(protocol.PingRequest{}, protocol.PingResponse{}),
	protocol.MethodRegisterNode:       call(protocol.RegisterNodeRequest{}, protocol.NodeUpdateResponse{}),
	protocol.MethodUpdateNodeStatus:   call(protocol.UpdateNodeStatusRequest{}, protocol.NodeUpdateResponse{}),
	protocol.MethodGetClientAllocs:    call(protocol.GetClientAllocsRequest{}, protocol.GetClientAllocsResponse{}),
	protocol.MethodUpdateAllocs:       call(protocol.UpdateAllocsRequest{}, protocol.WriteMeta{}),
	protocol.MethodEmitNodeEvents:     call(protocol.EmitNodeEventsRequest{}, protocol.WriteMeta{}),
	protocol.MethodUpdateNodeDrain:    call(protocol.UpdateNodeDrainRequest{}, protocol.WriteMeta{}),
	protocol.MethodGetNode:            call(protocol.GetNodeRequest{}, protocol.GetNodeResponse{}),
	protocol.MethodGetAllocs:          call(protocol.GetAllocsRequest{}, protocol.GetAllocsResponse{}),
	protocol.MethodGetAlloc:           call(protocol.GetAllocRequest{}, protocol.GetAllocResponse{}),
	protocol.MethodSignIdentities:     call(protocol.SignIdentitiesRequest{}, protocol.SignIdentitiesResponse{}),
	protocol.MethodUpsertServices:     call(protocol.UpsertServicesRequest{}, protocol.WriteMeta{}),
	protocol.MethodDeleteService:      call(protocol.DeleteServiceRequest{}, protocol.WriteMeta{}),
	protocol.MethodGetService:         call(protocol.GetServiceRequest{}, protocol.GetServiceResponse{}),
	protocol.MethodListServices:       call(protocol.ListServicesRequest{}, protocol.ListServicesResponse{}),
	protocol.MethodReadVariable:       call(protocol.ReadVariableRequest{}, protocol.ReadVariableResponse{}),
	protocol.MethodListVariables:      call(protocol.ListVariablesRequest{}, protocol.ListVariablesResponse{}),
	protocol.MethodWhoAmI:             call(protocol.WhoAmIRequest{}, protocol.WhoAmIResponse{}),
	protocol.MethodGetPolicies:        call(protocol.GetPoliciesRequest{}, protocol.GetPoliciesResponse{}),
	protocol.MethodGetRoles:           call(protocol.GetRolesRequest{}, protocol.GetRolesResponse{}),
	protocol.MethodGetClaimedPolicies: call(protocol.GetClaimedPoliciesRequest{}, protocol.GetClaimedPoliciesResponse{}),

	protocol.MethodSignalAlloc:       call(protocol.SignalAllocRequest{}, protocol.WriteMeta{}),
	protocol.MethodRestartAlloc:      call(protocol.RestartAllocRequest{}, protocol.WriteMeta{}),
	protocol.MethodAllocStats:        call(protocol.AllocStatsRequest{}, protocol.AllocStatsResponse{}),
	protocol.MethodAllocChecks:       call(protocol.AllocRequest{}, protocol.AllocChecksResponse{}),
	protocol.MethodCollectAlloc:      call(protocol.AllocRequest{}, protocol.WriteMeta{}),
	protocol.MethodCollectAllocs:     call(protocol.NodeRequest{}, protocol.WriteMeta{}),
	protocol.MethodHostStats:         call(protocol.NodeRequest{}, protocol.HostStatsResponse{}),
	protocol.MethodListFiles:         call(protocol.FileRequest{}, protocol.ListFilesResponse{}),
	protocol.MethodStatFile:          call(protocol.FileRequest{}, protocol.StatFileResponse{}),
	protocol.MethodApplyNodeMeta:     call(protocol.ApplyNodeMetaRequest{}, protocol.NodeMetaResponse{}),
	protocol.MethodReadNodeMeta:      call(protocol.NodeRequest{}, protocol.NodeMetaResponse{}),
	protocol.MethodGetNodeIdentity:   call(protocol.NodeRequest{}, protocol.NodeIdentityResponse{}),
	protocol.MethodRenewNodeIdentity: call(protocol.NodeRequest{}, protocol.RenewNodeIdentityResponse{}),
	protocol.MethodAgentHost:         call(protocol.AgentRequest{}, protocol.AgentHostResponse{}),
	protocol.MethodAgentProfile:      call(protocol.AgentProfileRequest{}, protocol.AgentProfileResponse{}),

	protocol.MethodExec:         {"request": protocol.ExecRequest{}, "input": protocol.ExecInput{}, "output": protocol.StreamMessage{}},
	protocol.MethodStreamLogs:   {"request": protocol.StreamLogsRequest{}, "output": protocol.StreamMessage{}},
	protocol.MethodStreamFile:   {"request": protocol.StreamFileRequest{}, "output": protocol.StreamMessage{}},
	protocol.MethodMonitorAgent: {"request": protocol.MonitorAgentRequest{}, "output": protocol.StreamMessage{}},
}

func call(request, response any) map[string]any {
	return map[string]any{"request": request, "response": response}
}

// refusedMethods are methods that a node refuses without reading the request, so that no type has its fields.
var refusedMethods = map[string]string{
	protocol.MethodSetPauseState:      "task schedules are a feature of Nomad Enterprise",
	protocol.MethodGetPauseState:      "task schedules are a feature of Nomad Enterprise",
	protocol.MethodExportAgentMonitor: "the log of an agent is not kept",
}

// deviation is a difference between messages of stock agents and the types of package protocol.
type deviation struct {
	pattern string // of difference.String
	reason  string
}

// allocOf is the pattern of an allocation in the messages that have one.
const allocOf = `Alloc\.(GetAlloc response\.Alloc|GetAllocs response\.Allocs\[\])`

// deviations are all deviations. A server, and a node, take an absent field as zero, and skip a field that they do not know.
var deviations = []deviation{
	{`- ACL\.(GetPolicies|GetClaimPolicies) response\.Policies\.\*\.(CreateIndex|Description|Hash|JobACL|ModifyIndex)`, "a node uses the rules of a policy only"},
	{`- ACL\.GetRolesByID response\.ACLRoles\.\*\.(CreateIndex|Description|Hash|ModifyIndex)`, "a node uses the policies of a role only"},
	{`- ACL\.WhoAmI response\.Identity\.(ACLToken\.(CreateIndex|CreateTime|ExpirationTTL|Global|Hash|ModifyIndex|SecretID)|ClientID|RemoteIP|TLSName)`, "a node uses what permits something only"},
	{`- Node\.GetNode response\.Node\.(ComputedClass|IdentitySigningKeyID|LastAllocUpdateIndex|LastMissedHeartbeatIndex|SecretID|NodeResources\.(NodeNetworks|Processors)|ReservedResources\.Cpu\.ReservedCpuCores)`, "a node uses the address and the drain of a node only"},
	{`- Node\.(Register|UpdateStatus) response\.(Features|Servers\[\]\.RPCM(ajor|inor)Version)`, "they are always zero"},
	{`- Node\.UpdateDrain response\.(EvalCreateIndex|EvalIDs|NodeModifyIndex)`, "a node uses the index only"},

	{`- Node\.Register request\.(CreateNodePool|NodeEvent)`, "servers set them"},
	{`- Node\.Register request\.Node\.(ComputedClass|CreateIndex|DrainStrategy|Events|IdentitySigningKeyID|LastAllocUpdateIndex|LastDrain|LastMissedHeartbeatIndex|ModifyIndex|StatusDescription|StatusUpdatedAt)`, "servers set them"},
	{`- Node\.Register request\.Node\.(CSIControllerPlugins|CSINodePlugins|GCVolumesOnNodeGC)`, "a node has no CSI volumes and no dynamic host volumes of servers"},
	{`- Node\.UpdateStatus request\.(IdentitySigningKeyID|NodeEvent|UpdatedAt)`, "servers set them"},
	{`- Node\.EmitEvents request\.NodeEvents\.\*\[\]\.CreateIndex`, "servers set it"},
	{`- Node\.UpdateDrain request\.(DrainStrategy\.(ForceDeadline|StartedAt)|NodeEvent|UpdatedAt|UpdatedBy)`, "servers set them"},
	{`- Node\.UpdateAlloc request\.Evals`, "servers refuse it from a node"},
	{`\+ Node\.UpdateAlloc request\.Alloc\[\]\.TaskStates\.\*\.Events\[\]\.DiskSize`, "the type is that of package api, which has it for old servers"},
	{`- Node\.GetNode request\.SecretID`, "it is always empty"},
	{`\+ NodeIdentity\.(Get|Renew) request\.SecretID`, "the type is that of other methods, too"},
	{`- Allocations\.Stats response\.Stats\..*MemoryStats\.MappedFile`, "package api does not have it"},
	{`- Allocations\.Exec input(\.Stdin|\.TtySize)?\.(Setup|XXX_\w+)`, "generated code of servers adds them"},

	{`\+ ` + allocOf + `\.\w+`, "servers leave out the empty fields of an allocation"},
	{`\+ (` + allocOf + `|Node\.GetNode response\.Node)\..*\.(Networks|Ports)\[\]\..*`, "servers leave out the empty fields of networks and ports"},
	{`- ` + allocOf + `\.AllocatedResources\.TaskLifecycles`, "they are in the job"},
	{`- ` + allocOf + `\.AllocatedResources\.Tasks\.\*\.Cpu\.ReservedCores`, "a node chooses the cores of a task itself"},
	{`- ` + allocOf + `\.(SharedResources|SigningKeyID)`, "a node does not use them"},
	{`- ` + allocOf + `\.TaskStates\.\*\.Paused`, "task schedules are a feature of Nomad Enterprise"},
	{`- Node\.UpdateAlloc request\.Alloc\[\]\.TaskStates\.\*\.Paused`, "task schedules are a feature of Nomad Enterprise"},
	{`- ` + allocOf + `\.Job\.TaskGroups\[\]\.Services\[\]\.Namespace`, "it is the namespace of the allocation"},
	{`- Alloc\.GetAllocs response\.SignedIdentities`, "it is always nil: the identities are in the allocations"},
	{`\+ ` + allocOf + `\.(Job\.(Migrate|Reschedule|TaskGroups\[\]\.(Services\[\]\.(CheckRestart|Checks\[\]\.Advertise)|Tasks\[\]\.LogConfig\.Enabled))|TaskStates\.\*\.Events\[\]\.DiskSize)`, "package api has them, servers do not"},
	{`\+ Node\.GetNode response\.Node\.(Drain|Reserved|Resources)`, "package api has them, servers do not"},
}

// TestMessagesOfStockAgents decodes each message between stock clients and a stock server with the types of package protocol, and
// encodes it again: but for deviations, the result has the same keys and values, and each zero has the same form.
func TestMessagesOfStockAgents(t *testing.T) {
	r := &recorder{t: t}
	c := startCluster(t, serverOptions{access: true, proxy: r.proxy})
	newStockTraffic(t, c).play()
	messages, err := r.messages()
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[string]map[string]int{} // number of messages by method and part
	differences := map[string]map[string]string{}
	used := map[deviation]bool{}
	for _, m := range messages {
		if recorded[m.method] == nil {
			recorded[m.method], differences[m.method] = map[string]int{}, map[string]string{}
		}
		recorded[m.method][m.part]++
		types, known := messageTypes[m.method]
		if !known {
			if refusedMethods[m.method] == "" {
				t.Errorf("package protocol does not have the method %s", m.method)
			}
			continue
		}
		found, err := encodeAgain(types[m.part], m)
		if err != nil {
			t.Errorf("%s %s: %v", m.method, m.part, err)
		}
		for _, d := range found {
			i := slices.IndexFunc(deviations, func(each deviation) bool {
				return regexp.MustCompile("^(?:" + each.pattern + ")$").MatchString(d.String())
			})
			if i >= 0 {
				used[deviations[i]] = true
			} else {
				differences[m.method][d.String()] = d.text
			}
		}
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 8, 2, ' ', 0)
	for _, method := range methodConstants(t) {
		result := "same"
		for part := range messageTypes[method] {
			if recorded[method][part] == 0 {
				result = "no " + part
				t.Errorf("no %s of %s was recorded", part, method)
			}
		}
		switch {
		case refusedMethods[method] != "":
			result = "refused: " + refusedMethods[method]
		case messageTypes[method] == nil:
			t.Errorf("messageTypes does not have %s", method)
		case len(differences[method]) > 0:
			result = fmt.Sprintf("%d differences", len(differences[method]))
		}
		fmt.Fprintf(w, "%s\t%v\t%s\n", method, recorded[method], result)
	}
	w.Flush()
	t.Logf("messages of stock agents, encoded again:\n%s", table.String())
	for _, method := range slices.Sorted(maps.Keys(differences)) {
		for _, place := range slices.Sorted(maps.Keys(differences[method])) {
			t.Errorf("%s: %s", place, differences[method][place])
		}
	}
	for _, each := range deviations {
		if !used[each] {
			t.Errorf("no message has the deviation %s: %s", each.pattern, each.reason)
		}
	}
}

// methodConstants returns the values of the constants of package protocol that name methods.
func methodConstants(t *testing.T) (methods []string) {
	t.Helper()
	packages, err := filepath.Glob(filepath.Join(systemtest.RepositoryDir(), "runtime", "cluster", "protocol", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range packages {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, isValue := n.(*ast.ValueSpec)
			if isValue && strings.HasPrefix(spec.Names[0].Name, "Method") {
				value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				methods = append(methods, value)
			}
			return true
		})
	}
	slices.Sort(methods)
	if len(methods) < 30 {
		t.Fatalf("package protocol has the methods %v only", methods)
	}
	return methods
}

// difference says how a message differs from itself after it was decoded and encoded.
type difference struct {
	// kind is - for a field that is absent afterwards, + for a field that is zero and was absent before, and ! for another value.
	kind  string
	place string // method, part and path
	text  string
}

func (d difference) String() string { return d.kind + " " + d.place }

// encodeAgain decodes a message into a new value of the type of zero, encodes the value, and returns how the result differs.
func encodeAgain(zero any, m recordedMessage) (differences []difference, err error) {
	value := reflect.New(reflect.TypeOf(zero))
	if err := wire.DecodeBytes(m.bytes, value.Interface()); err != nil {
		return nil, err
	}
	encoded, err := wire.EncodeBytes(value.Interface())
	if err != nil {
		return nil, err
	}
	again, _, err := splitMessage(encoded)
	if err != nil {
		return nil, err
	}
	return compareValues(nil, m.method+" "+m.part, m.value, again), nil
}

// isFieldName matches keys that are names of fields. Other keys, which differ from message to message, are * in places.
var isFieldName = regexp.MustCompile(`^[A-Z][A-Za-z0-9_]*$`)

// compareValues adds the differences between two values of splitMessage to found.
func compareValues(found []difference, place string, recorded, again any) []difference {
	switch was := recorded.(type) {
	case map[string]any:
		is, isMap := again.(map[string]any)
		if !isMap {
			break
		}
		keys := maps.Clone(was)
		maps.Copy(keys, is)
		for key := range keys {
			field := place + "." + key
			if !isFieldName.MatchString(key) {
				field = place + ".*"
			}
			a, before := was[key]
			b, after := is[key]
			switch {
			case !after:
				found = append(found, difference{"-", field, "recorded " + describe(a)})
			case !before && isZero(b):
				found = append(found, difference{"+", field, "encoded " + describe(b)})
			case !before:
				found = append(found, difference{"!", field, "recorded nothing, encoded " + describe(b)})
			default:
				found = compareValues(found, field, a, b)
			}
		}
		return found
	case []any:
		is, isList := again.([]any)
		if !isList || len(is) != len(was) {
			break
		}
		for i := range was {
			found = compareValues(found, place+"[]", was[i], is[i])
		}
		return found
	}
	if !reflect.DeepEqual(recorded, again) {
		found = append(found, difference{"!", place, "recorded " + describe(recorded) + ", encoded " + describe(again)})
	}
	return found
}

// isZero reports whether a value of splitMessage is zero, or has only fields that are.
func isZero(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		for _, field := range v {
			if !isZero(field) {
				return false
			}
		}
		return true
	case []any:
		return len(v) == 0
	}
	return value == nil || reflect.ValueOf(value).IsZero()
}

// describe returns a short text for a value.
func describe(value any) string {
	text := fmt.Sprintf("%T(%#v)", value, value)
	return text[:min(len(text), 80)]
}

// stockTraffic makes stock agents send all messages.
type stockTraffic struct {
	t       *testing.T
	cluster *cluster
	first   *stockAgent // client
	firstID string
	plugin  string // path of the driver plugin of first
}

func newStockTraffic(t *testing.T, c *cluster) *stockTraffic {
	t.Helper()
	dir := t.TempDir()
	plugin := filepath.Join(dir, "plugins", "hello-driver")
	if err := os.Mkdir(filepath.Dir(plugin), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := peers.Unpack("hello-driver", plugin); err != nil {
		t.Skip("no plugin of another author: ", err)
	}
	s := &stockTraffic{t: t, cluster: c, plugin: plugin}
	s.first = c.startStockClient("first", stockClientAccess, fmt.Sprintf("plugin_dir = %q\nplugin \"hello-driver\" {\n}\nleave_on_interrupt = true\nclient {\n  drain_on_shutdown {\n    deadline = \"1s\"\n  }\n}\n", filepath.Dir(plugin)))
	s.firstID = s.awaitNode("first")
	return s
}

const stockClientAccess = "acl {\n  enabled = true\n}\n"

// awaitNode waits until a stock client is ready, and returns its id.
func (s *stockTraffic) awaitNode(name string) string {
	s.t.Helper()
	n := &node{t: s.t, cluster: s.cluster, name: name}
	n.awaitStatus("ready")
	return n.id
}

// trafficTemplate reads variables and services.
const trafficTemplate = `
{{ with nomadVar "nomad/jobs/web" }}{{ .pw }}{{ end }}
{{ range nomadVarList "nomad/jobs" }}{{ .Path }}{{ end }}
{{ range nomadServices }}{{ .Name }}{{ end }}
{{ range nomadService "web" }}{{ .Port }}{{ end }}
`

// newJob returns a job whose allocation uses what servers have for a node.
func (s *stockTraffic) newJob() *api.Job {
	task := systemtest.NewRawExecShellTask("t", "echo ran; "+systemtest.SleepForeverScript, func(t *api.Task) {
		t.Identity = &api.WorkloadIdentity{Env: true}
		t.Identities = []*api.WorkloadIdentity{{Name: "extra", Audience: []string{"me"}, File: true, TTL: time.Hour}}
		t.Templates = []*api.Template{{EmbeddedTmpl: new(trafficTemplate), DestPath: new("local/read"), ChangeMode: new("noop")}}
		t.Env, t.Meta = map[string]string{"a": "b"}, map[string]string{"c": "d"}
	})
	group := api.NewTaskGroup("g", 1).AddTask(task).AddTask(systemtest.NewRawExecShellTask("init", "true", systemtest.AsPrestartTask))
	group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}}
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(300), Sticky: new(true), Migrate: new(true)}
	group.Services = []*api.Service{{Name: "web", Provider: "nomad", PortLabel: "http", Tags: []string{"a"}, Checks: []api.ServiceCheck{{
		Name: "open", Type: "tcp", Interval: time.Second, Timeout: time.Second, OnUpdate: "ignore",
	}}}}
	group.Update = &api.UpdateStrategy{MinHealthyTime: new(100 * time.Millisecond), HealthCheck: new("task_states")}
	job := api.NewServiceJob("web", "web", api.GlobalRegion, 50).AddTaskGroup(group)
	job.Datacenters = []string{"*"}
	return job
}

// runningAlloc waits until a job has a running allocation on a node, and returns its id.
func (s *stockTraffic) runningAlloc(jobID, nodeID string) (allocID string) {
	s.t.Helper()
	s.cluster.eventually(jobID+" runs", func() error {
		list, err := s.cluster.allocs(jobID)
		for _, a := range list {
			if a.ClientStatus == api.AllocClientStatusRunning && a.NodeID == nodeID && a.DeploymentStatus != nil {
				allocID = a.ID
				return nil
			}
			err = errors.Join(err, fmt.Errorf("allocation is %s: %s", a.ClientStatus, a.ClientDescription))
		}
		return errors.Join(err, errors.New("no allocation runs"))
	})
	return allocID
}

// play makes the agents send the messages.
func (s *stockTraffic) play() {
	s.t.Helper()
	c := s.cluster
	_, _, err := c.api().Variables().Create(&api.Variable{Path: "nomad/jobs/web", Items: api.VariableItems{"pw": "s3"}}, nil)
	c.check(err)
	_, err = c.api().ACLPolicies().Upsert(&api.ACLPolicy{Name: "of-job", Rules: "namespace \"default\" {\n  policy = \"read\"\n}\n", JobACL: &api.JobACL{Namespace: "default", JobID: "web"}}, nil)
	c.check(err)
	c.register(s.newJob())
	once := api.NewBatchJob("once", "once", api.GlobalRegion, 50).AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(systemtest.NewRawExecShellTask("t", "true")))
	once.Datacenters = []string{"*"}
	c.register(once)
	alloc := s.runningAlloc("web", s.firstID)
	s.useAlloc(alloc)
	s.useNode()
	s.collect()
	s.breakPlugin()

	// Another node takes the allocation over, and then the first one leaves.
	c.startStockClient("second", stockClientAccess)
	second := s.awaitNode("second")
	_, err = c.api().Nodes().UpdateDrainOpts(s.firstID, &api.DrainOptions{DrainSpec: &api.DrainSpec{Deadline: time.Minute}}, nil)
	c.check(err)
	s.runningAlloc("web", second)
	if err := s.first.process.Process.Signal(unix.SIGINT); err != nil {
		s.t.Fatal(err)
	}
	_ = s.first.process.Wait() // the exit code of an agent that leaves is not 0
	s.first.process = nil

	// A stock client that is killed leaves the cgroups of its tasks.
	_, _, err = c.api().Jobs().Deregister("web", false, nil)
	c.check(err)
	c.eventually("the allocations of web have ended", func() error {
		list, err := c.allocs("web")
		for _, a := range list {
			if a.ClientStatus == api.AllocClientStatusRunning {
				err = errors.Join(err, fmt.Errorf("allocation %s runs", a.ID))
			}
		}
		return err
	})
}

// useAlloc uses an allocation through the server.
func (s *stockTraffic) useAlloc(id string) {
	s.t.Helper()
	alloc := "/v1/client/allocation/" + id
	user := s.newUserToken()
	if out := s.exec(id, user, "cat; echo err >&2; exit 3", `{"stdin":{"data":"aW5wdXQK"}}`, `{"stdin":{"close":true}}`); !strings.Contains(out, `"exit_code":3`) {
		s.t.Errorf("exec: %s", out)
	}
	s.exec(id, s.cluster.token, "stty size", `{"tty_size":{"height":30,"width":100}}`, `{}`)
	workload := s.exec(id, s.cluster.token, "printf %s $NOMAD_TOKEN", `{"stdin":{"close":true}}`)
	s.request(s.first, s.taskToken(workload), http.MethodGet, "/v1/client/metadata", nil)
	for _, request := range []struct{ method, path string }{
		{http.MethodGet, alloc + "/stats"},
		{http.MethodGet, alloc + "/checks"},
		{http.MethodGet, "/v1/client/fs/ls/" + id + "?path=/"},
		{http.MethodGet, "/v1/client/fs/stat/" + id + "?path=/t/local/read"},
		{http.MethodGet, "/v1/client/fs/cat/" + id + "?path=/t/local/read"},
		{http.MethodGet, "/v1/client/fs/logs/" + id + "?task=t&type=stdout&origin=start"},
	} {
		s.expectOK(request.method, request.path, nil)
	}
	s.expectOK(http.MethodPut, alloc+"/signal", api.AllocSignalRequest{Task: "t", Signal: "SIGCONT"})
	s.expectOK(http.MethodPut, alloc+"/restart", api.AllocationRestartRequest{TaskName: "t"})
}

// useNode uses the first node through the server.
func (s *stockTraffic) useNode() {
	s.t.Helper()
	node := "?node_id=" + s.firstID
	s.expectOK(http.MethodGet, "/v1/client/stats"+node, nil)
	s.expectOK(http.MethodPost, "/v1/client/metadata"+node, api.NodeMetaApplyRequest{NodeID: s.firstID, Meta: map[string]*string{"team": new("blue"), "connect.log_level": nil}})
	s.expectOK(http.MethodGet, "/v1/client/metadata"+node, nil)
	s.expectOK(http.MethodGet, "/v1/client/identity"+node, nil)
	s.expectOK(http.MethodPost, "/v1/client/identity/renew"+node, map[string]string{"NodeID": s.firstID})
	s.expectOK(http.MethodGet, "/v1/agent/host"+node, nil)
	s.expectOK(http.MethodGet, "/v1/agent/pprof/cmdline"+node, nil)

	ctx, cancel := context.WithTimeout(s.t.Context(), waitTimeout)
	defer cancel()
	reply, err := http.DefaultClient.Do(s.newRequest(ctx, s.cluster.servers[0], s.cluster.token, http.MethodGet, "/v1/agent/monitor"+node+"&log_level=trace", nil))
	if err != nil {
		s.t.Fatal(err)
	}
	defer reply.Body.Close()
	if n, err := reply.Body.Read(make([]byte, 1)); n == 0 {
		s.t.Errorf("monitor: %v", err)
	}
}

// collect removes ended allocations from the disk.
func (s *stockTraffic) collect() {
	s.t.Helper()
	ended := ""
	s.cluster.eventually("the batch job is complete", func() error {
		list, err := s.cluster.allocs("once")
		for _, a := range list {
			if a.ClientStatus == api.AllocClientStatusComplete {
				ended = a.ID
				return nil
			}
		}
		return errors.Join(err, errors.New("no allocation is complete"))
	})
	s.expectOK(http.MethodPut, "/v1/client/allocation/"+ended+"/gc", nil)
	s.expectOK(http.MethodPut, "/v1/client/gc?node_id="+s.firstID, nil)
}

// breakPlugin ends a driver for good, which the node reports as an event.
func (s *stockTraffic) breakPlugin() {
	s.t.Helper()
	if err := os.Remove(s.plugin); err != nil {
		s.t.Fatal(err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		arguments, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // a process can have exited
		if err == nil && bytes.HasPrefix(arguments, append([]byte(s.plugin), 0)) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	s.cluster.eventually("the node has an event of the driver", func() error {
		info, _, err := s.cluster.api().Nodes().Info(s.firstID, nil)
		if err == nil && !slices.ContainsFunc(info.Events, func(e *api.NodeEvent) bool { return e.Subsystem == "Driver" }) {
			err = fmt.Errorf("the last event is %+v", *info.Events[len(info.Events)-1])
		}
		return err
	})
}

// newUserToken returns the token of a user whose rights come from a policy and a role.
func (s *stockTraffic) newUserToken() string {
	s.t.Helper()
	c := s.cluster
	rules := "namespace \"default\" {\n  capabilities = [\"read-job\", \"alloc-exec\", \"alloc-node-exec\"]\n}\nnode {\n  policy = \"read\"\n}\n"
	for _, name := range []string{"users", "of-role"} {
		_, err := c.api().ACLPolicies().Upsert(&api.ACLPolicy{Name: name, Description: "may run commands", Rules: rules}, nil)
		c.check(err)
	}
	role, _, err := c.api().ACLRoles().Create(&api.ACLRole{Name: "using", Policies: []*api.ACLRolePolicyLink{{Name: "of-role"}}}, nil)
	c.check(err)
	token, _, err := c.api().ACLTokens().Create(&api.ACLToken{Name: "user", Type: "client", Policies: []string{"users"}, Roles: []*api.ACLTokenRoleLink{{ID: role.ID}}}, nil)
	c.check(err)
	return token.SecretID
}

// exec runs a script in the task t through the server, with messages of the user as input, and returns the messages of the node.
// The task has a terminal if the first input is its size.
func (s *stockTraffic) exec(allocID, token, script string, inputs ...string) (messages string) {
	s.t.Helper()
	command, err := json.Marshal([]string{"/bin/sh", "-c", script})
	if err != nil {
		s.t.Fatal(err)
	}
	tty := len(inputs) > 0 && strings.Contains(inputs[0], "tty_size")
	target := s.newRequest(s.t.Context(), s.cluster.servers[0], token, http.MethodGet, "/v1/client/allocation/"+allocID+"/exec", nil)
	target.URL.RawQuery = url.Values{"task": {"t"}, "tty": {strconv.FormatBool(tty)}, "command": {string(command)}}.Encode()
	ctx, cancel := context.WithTimeout(s.t.Context(), systemtest.WaitTimeout)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, target.URL.String(), &websocket.DialOptions{HTTPHeader: target.Header})
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.CloseNow()
	for _, input := range inputs {
		if err := conn.Write(ctx, websocket.MessageText, []byte(input)); err != nil {
			s.t.Fatal(err)
		}
	}
	for {
		_, text, err := conn.Read(ctx)
		messages += string(text)
		if err != nil {
			s.t.Errorf("command %q: %v after %s", script, err, messages)
		}
		if err != nil || bytes.Contains(text, []byte(`"exited":true`)) {
			return messages
		}
	}
}

// taskToken returns the token in the output of a command.
func (s *stockTraffic) taskToken(messages string) string {
	s.t.Helper()
	found := regexp.MustCompile(`"stdout":\{"data":"([^"]+)"`).FindStringSubmatch(messages)
	if found == nil {
		s.t.Fatalf("no output in %s", messages)
	}
	token, err := base64.StdEncoding.DecodeString(found[1])
	if err != nil {
		s.t.Fatal(err)
	}
	return string(token)
}

// newRequest returns a request to the HTTP API of an agent.
func (s *stockTraffic) newRequest(ctx context.Context, to *stockAgent, token, method, path string, body any) *http.Request {
	s.t.Helper()
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			s.t.Fatal(err)
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, to.Address()+path, content)
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("X-Nomad-Token", token)
	return request
}

// request sends a request to an agent, and returns the reply.
func (s *stockTraffic) request(to *stockAgent, token, method, path string, body any) (code int, text string) {
	s.t.Helper()
	reply, err := http.DefaultClient.Do(s.newRequest(s.t.Context(), to, token, method, path, body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer reply.Body.Close()
	content, err := io.ReadAll(reply.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return reply.StatusCode, string(content)
}

// expectOK sends a request to the server, and fails the test if the reply is an error.
func (s *stockTraffic) expectOK(method, path string, body any) {
	s.t.Helper()
	if code, text := s.request(s.cluster.servers[0], s.cluster.token, method, path, body); code != http.StatusOK {
		s.t.Errorf("%s %s: %d %s", method, path, code, text)
	}
}
