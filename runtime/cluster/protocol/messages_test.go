package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/shareddir"
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
	{`- ACL\.(GetPolicies|GetClaimPolicies) response\.Policies\.\*\.(CreateIndex|Description|Hash|JobACL|ModifyIndex|RulesJSON)`, "a node uses the text of a policy only"},
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

// recordedMessage is a message of the recording.
type recordedMessage struct {
	method string
	part   string // request, response, input, or output
	bytes  []byte
	value  any // see splitMessage
}

// readRecording returns the messages of a recording, without headers.
func readRecording(t *testing.T) (messages []recordedMessage) {
	t.Helper()
	f, err := os.Open(filepath.Join(shareddir.OrSkip(t, "../../..", "recordings", "cluster"), "messages.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := json.NewDecoder(f); ; {
		var line struct {
			Method, Part string
			Bytes        []byte
		}
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) {
			return messages
		}
		m := recordedMessage{method: line.Method, part: line.Part, bytes: line.Bytes}
		var rest []byte
		if err == nil {
			m.value, rest, err = splitMessage(m.bytes)
		}
		if err != nil || len(rest) > 0 {
			t.Fatalf("message %d: %d bytes too many, %v", len(messages), len(rest), err)
		}
		if !strings.HasSuffix(m.part, "-header") {
			messages = append(messages, m)
		}
	}
}

// TestRecordedMessages decodes each recorded message between stock clients and a stock server with the types of this package, and
// encodes it again: but for deviations, the result has the same keys and values, and each zero has the same form.
func TestRecordedMessages(t *testing.T) {
	messages := readRecording(t)
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
	t.Logf("recorded messages, encoded again:\n%s", table.String())
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
	packages, err := filepath.Glob("*.go")
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

// splitMessage returns the first msgpack value of b, and the bytes after it. It does not use package wire, which it tests. The
// value is nil, a bool, an int64, a uint64 that is larger, a float64, a string, an []any or a map[string]any, so that different
// forms of zero are different values. Forms outside of the dialect of servers are errors.
func splitMessage(b []byte) (value any, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, io.ErrUnexpectedEOF
	}
	kind, rest := b[0], b[1:]
	number := func(bytes int) (n uint64) {
		if len(rest) < bytes {
			err = io.ErrUnexpectedEOF
			return 0
		}
		for _, digit := range rest[:bytes] {
			n = n<<8 | uint64(digit)
		}
		rest = rest[bytes:]
		return n
	}
	length, isText, isList, isMap := uint64(0), false, false, false
	switch {
	case kind <= 0x7f:
		return int64(kind), rest, nil
	case kind >= 0xe0:
		return int64(int8(kind)), rest, nil
	case kind <= 0x8f:
		isMap, length = true, uint64(kind&0x0f)
	case kind <= 0x9f:
		isList, length = true, uint64(kind&0x0f)
	case kind <= 0xbf:
		isText, length = true, uint64(kind&0x1f)
	case kind == 0xc0:
		return nil, rest, nil
	case kind == 0xc2, kind == 0xc3:
		return kind == 0xc3, rest, nil
	case kind == 0xca:
		n := number(4)
		return float64(math.Float32frombits(uint32(n))), rest, err
	case kind == 0xcb:
		n := number(8)
		return math.Float64frombits(n), rest, err
	case kind >= 0xcc && kind <= 0xcf:
		n := number(1 << (kind - 0xcc))
		if n > math.MaxInt64 {
			return n, rest, err
		}
		return int64(n), rest, err
	case kind >= 0xd0 && kind <= 0xd3:
		bytes := 1 << (kind - 0xd0)
		shift := 64 - 8*bytes
		n := number(bytes)
		return int64(n<<shift) >> shift, rest, err
	case kind == 0xda, kind == 0xdb:
		isText, length = true, number(2<<(kind-0xda))
	case kind == 0xdc, kind == 0xdd:
		isList, length = true, number(2<<(kind-0xdc))
	case kind == 0xde, kind == 0xdf:
		isMap, length = true, number(2<<(kind-0xde))
	default:
		return nil, nil, fmt.Errorf("value with the first byte %#x", kind)
	}
	switch {
	case err != nil:
	case isText && uint64(len(rest)) < length:
		err = io.ErrUnexpectedEOF
	case isText:
		return string(rest[:length]), rest[length:], nil
	case isList:
		list := []any{}
		for range length {
			var element any
			if element, rest, err = splitMessage(rest); err != nil {
				return nil, nil, err
			}
			list = append(list, element)
		}
		return list, rest, nil
	case isMap:
		fields := map[string]any{}
		for range length {
			var key, field any
			if key, rest, err = splitMessage(rest); err != nil {
				return nil, nil, err
			}
			if field, rest, err = splitMessage(rest); err != nil {
				return nil, nil, err
			}
			fields[fmt.Sprint(key)] = field
		}
		return fields, rest, nil
	}
	return nil, nil, err
}
