package clustertest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// ownTarget is a server of this package with the operations of its operator.
type ownTarget struct{ *Server }

func (s ownTarget) run(job *api.Job, nodeID string) string {
	return s.PlaceAlloc(nodeID, job, *job.TaskGroups[0].Name)
}

func (s ownTarget) update(job *api.Job) { s.UpdateJob(job) }

func (s ownTarget) stop(job *api.Job) {
	s.mu.Lock()
	var ids []string
	for id, a := range s.allocs {
		if a.JobID == *job.ID {
			ids = append(ids, id)
		}
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.StopAlloc(id)
	}
}

func (s ownTarget) purgeNode(id string) { s.PurgeNode(id) }

func (s ownTarget) missHeartbeat(id string) { s.MissHeartbeat(id) }

func (s ownTarget) settle() {}

func (s ownTarget) waitForDrain(string) {} // a drain without allocations ends at once

func (s ownTarget) putVariable(path string, items map[string]string) {
	s.PutVariable("default", path, items)
}

func (s ownTarget) makeTokens() (secret, roleID string) {
	s.AddPolicy(Policy{
		Name: "readers", Description: "may read", Node: "read",
		Namespaces: []NamespaceRule{{Name: "default", Policy: "read", Capabilities: []string{"alloc-exec"}, ReadVariables: []string{"nomad/jobs/web"}}},
	})
	s.AddPolicy(Policy{Name: "of-job", JobNamespace: "default", JobID: "web", Namespaces: []NamespaceRule{{Name: "default", ReadVariables: []string{"secret/other"}}}})
	roleID = s.AddRole("reading", "readers")
	return s.AddToken("user", []string{"readers"}, []string{roleID}), roleID
}

func (s ownTarget) managementToken() string {
	if !s.config.AccessControl {
		return ""
	}
	return s.ManagementToken()
}

// shapesOf adds to shapes the form of value at path: its type, and for a scalar whether it is zero. Elements of lists, and
// the values of maps whose keys are not names of fields, are at one path.
func shapesOf(shapes map[string]map[string]bool, path string, value any) {
	add := func(form string) {
		if shapes[path] == nil {
			shapes[path] = map[string]bool{}
		}
		shapes[path][form] = true
	}
	switch v := value.(type) {
	case nil:
		add("nil")
	case object:
		add("map")
		if len(v) == 0 && !fieldNames(v) {
			add("empty map")
		}
		for key, element := range v {
			if !isFieldName.MatchString(key) {
				key = "*"
			}
			shapesOf(shapes, path+"."+key, element)
		}
	case []any:
		add("list")
		for _, element := range v {
			shapesOf(shapes, path+"[]", element)
		}
		if len(v) == 0 {
			add("empty list")
		}
	case string:
		switch {
		case v == "":
			add("empty text")
		case len(v) == 15 && v[0] == 1:
			if strings.Count(v, "\x00") >= 12 {
				add("zero time")
			} else {
				add("time")
			}
		case isVaried.MatchString(path):
			add("text")
		default:
			for _, r := range normalized {
				v = r.pattern.ReplaceAllString(v, r.name)
			}
			add(fmt.Sprintf("text %q", v))
		}
	case bool:
		add("bool")
	case int64, uint64, float64:
		kind := "integer"
		if _, isFloat := v.(float64); isFloat {
			kind = "float"
		}
		if fmt.Sprint(v) == "0" {
			kind = "zero " + kind
		}
		add(kind)
	default:
		add(fmt.Sprintf("%T", v))
	}
}

// isVaried matches the paths of texts that two servers do not have in common: hashes, addresses as bytes, and names of
// tokens.
var isVaried = regexp.MustCompile(`\.(Hash|RemoteIP|ComputedClass|Rules)$`)

// normalized are texts that differ from server to server.
var normalized = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "ID"},
	{regexp.MustCompile(`^eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$`), "JWT"},
	{regexp.MustCompile(`^127\.0\.0\.1:[0-9]+$`), "ADDRESS"},
}

// isFieldName matches the names of fields, which start with a capital letter.
var isFieldName = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)

func fieldNames(m object) bool {
	for key := range m {
		if !isFieldName.MatchString(key) {
			return false
		}
	}
	return true
}

// incomparable are the paths whose values come from what only a stock server has: its scheduler and its random choices.
var incomparable = regexp.MustCompile(`\.Metrics\.ScoreMetaData\[\]\.|\.Metrics\.AllocationTime$|\.AllocTime`)

// compareSteps reports how the results of the same scenario differ.
func compareSteps(stock, own []step) []string {
	var differences []string
	if len(stock) != len(own) {
		differences = append(differences, fmt.Sprintf("the stock server has %d steps, this package has %d", len(stock), len(own)))
	}
	for i := range min(len(stock), len(own)) {
		name := stock[i].name
		if stock[i].err != own[i].err {
			differences = append(differences, fmt.Sprintf("%s: stock error %q, own error %q", name, stock[i].err, own[i].err))
			continue
		}
		want, got := map[string]map[string]bool{}, map[string]map[string]bool{}
		shapesOf(want, "", stock[i].response)
		shapesOf(got, "", own[i].response)
		paths := map[string]bool{}
		for path := range want {
			paths[path] = true
		}
		for path := range got {
			paths[path] = true
		}
		for _, path := range slices.Sorted(maps.Keys(paths)) {
			if !incomparable.MatchString(path) && !maps.Equal(want[path], got[path]) {
				differences = append(differences, fmt.Sprintf("%s: %s: stock %v, own %v", name, path, slices.Sorted(maps.Keys(want[path])), slices.Sorted(maps.Keys(got[path]))))
			}
		}
	}
	return differences
}

// TestAnswersHaveTheShapesOfAStockServer plays the same calls against a stock server and a server of this package: the
// errors are the same texts, and the answers have the same keys, types and zero values.
func TestAnswersHaveTheShapesOfAStockServer(t *testing.T) {
	for _, accessControl := range []bool{false, true} {
		t.Run(fmt.Sprintf("access control %t", accessControl), func(t *testing.T) {
			stock := play(t, stockTarget{t, startStock(t, accessControl, "")}, accessControl)
			own := play(t, ownTarget{Start(t, Config{AccessControl: accessControl})}, accessControl)
			for _, difference := range compareSteps(stock, own) {
				t.Error(difference)
			}
		})
	}
}

// TestOutagesAreThoseOfAStockServer compares nodes that miss heartbeats.
func TestOutagesAreThoseOfAStockServer(t *testing.T) {
	stock := playOutages(t, stockTarget{t, startStock(t, false, "heartbeat_grace = \"1s\"\nmin_heartbeat_ttl = \"1s\"")})
	own := playOutages(t, ownTarget{Start(t, Config{})})
	for _, difference := range compareSteps(stock, own) {
		t.Error(difference)
	}
}
