package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// shownTo are the objects that a route shows to a client, as "namespace/id".
type shownTo map[string]bool

func (s shownTo) sorted() []string { return slices.Sorted(maps.Keys(s)) }

// listed returns the objects of a list, by the names of their fields with the namespace and the id.
func (f *aclFixture) listed(t *testing.T, secret, target, idField string) shownTo {
	t.Helper()
	r := f.sendAs(secret, "GET", target, "")
	text := bodyText(r)
	shown := shownTo{}
	if r.StatusCode == http.StatusForbidden {
		return shown
	}
	var objects []map[string]any
	if err := json.Unmarshal([]byte(text), &objects); err != nil {
		t.Fatalf("%s: status %d, %v: %s", target, r.StatusCode, err, text)
	}
	for _, o := range objects {
		shown[fmt.Sprint(o["Namespace"], "/", o[idField])] = true
	}
	return shown
}

// found returns the objects that the search finds in a context.
func (f *aclFixture) found(t *testing.T, secret, namespace, searchContext, prefix string) shownTo {
	t.Helper()
	r := f.sendAs(secret, "PUT", "/v1/search?namespace="+namespace, fmt.Sprintf(`{"Prefix": %q, "Context": %q}`, prefix, searchContext))
	text := bodyText(r)
	shown := shownTo{}
	if r.StatusCode == http.StatusForbidden {
		return shown
	}
	var reply struct{ Matches map[string][]string }
	if err := json.Unmarshal([]byte(text), &reply); err != nil {
		t.Fatalf("search: status %d: %s", r.StatusCode, text)
	}
	for _, id := range reply.Matches[searchContext] {
		shown[namespace+"/"+id] = true
	}
	return shown
}

// inEvents returns the objects in the events of a topic.
func (f *aclFixture) inEvents(t *testing.T, address, secret, namespace, topic string) shownTo {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", address+"/v1/event/stream?latest=100000&topic="+topic+"&namespace="+namespace, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Nomad-Token", secret)
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	shown := shownTo{}
	if reply.StatusCode == http.StatusForbidden {
		return shown
	}
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var batch struct {
			Events []struct{ Namespace, Key string }
		}
		if err := json.Unmarshal(lines.Bytes(), &batch); err != nil {
			t.Fatal(err)
		}
		for _, e := range batch.Events {
			if e.Key == f.config.NodeID { // its event is the last one
				return shown
			}
			shown[e.Namespace+"/"+e.Key] = true
		}
	}
	t.Fatalf("the stream has ended: %v", lines.Err())
	return nil
}

// randomRules returns the text of a policy with random capabilities for some labels.
func randomRules(random *rand.Rand) string {
	labels := []string{"default", "prod", "prod-blue", "prod*", "*-blue", "*", "p*"}
	capabilities := []string{"list-jobs", "read-job", "submit-job", "read-logs", "host-volume-read", "deny"}
	policies := []string{"read", "write", "deny", "scale"}
	text := "node { policy = \"read\" }\n"
	for _, i := range random.Perm(len(labels))[:1+random.IntN(3)] {
		text += fmt.Sprintf("namespace %q {\n", labels[i])
		if random.IntN(3) == 0 {
			text += fmt.Sprintf("  policy = %q\n", policies[random.IntN(len(policies))])
		}
		chosen := []string{}
		for _, c := range capabilities {
			if random.IntN(5) < 2 && (c != "deny" || random.IntN(3) == 0) {
				chosen = append(chosen, fmt.Sprintf("%q", c))
			}
		}
		text += "  capabilities = [" + strings.Join(chosen, ", ") + "]\n"
		if random.IntN(2) == 0 {
			text += fmt.Sprintf("  variables {\n    path %q { capabilities = [%q] }\n  }\n", []string{"var-*", "*", "var-prod"}[random.IntN(3)], []string{"read", "list", "deny"}[random.IntN(3)])
		}
		text += "}\n"
	}
	return text
}

// Random tokens see the same objects in lists of one and of all namespaces, one by one, in searches and in events. The test knows
// nothing about rights: it compares routes.
func TestRoutesAgreeAboutWhatATokenSees(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	f := newACLFixture(t, nil).bootstrap(t)
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	namespaces := []string{"default", "prod", "prod-blue", "other-blue"}
	ids := f.putInNamespaces(t, namespaces...)
	f.putNode(t)
	seen := 0
	for range 30 { // the feed keeps a hundred changes
		rules := randomRules(random)
		secret := f.tokenWith(t, rules)
		compare := func(what string, got, want shownTo) {
			t.Helper()
			seen += len(want)
			if !maps.Equal(got, want) {
				t.Errorf("%s: %q, other routes show %q, with\n%s", what, got.sorted(), want.sorted(), rules)
			}
		}
		for _, kind := range []struct{ list, one, idField, topic, context string }{
			{"/v1/jobs", "", "ID", "", ""},
			{"/v1/allocations", "/v1/allocation/", "ID", "Allocation", "allocs"},
			{"/v1/evaluations", "/v1/evaluation/", "ID", "Evaluation", "evals"},
			{"/v1/deployments", "/v1/deployment/", "ID", "Deployment", "deployment"},
			{"/v1/vars", "", "Path", "Variable", ""},
		} {
			all := f.listed(t, secret, kind.list+"?namespace=*", kind.idField)
			single, one, searched, events := shownTo{}, shownTo{}, shownTo{}, shownTo{}
			for _, ns := range namespaces {
				maps.Copy(single, f.listed(t, secret, kind.list+"?namespace="+ns, kind.idField))
				if kind.one != "" && f.sendAs(secret, "GET", kind.one+ids[ns]+"?namespace="+ns, "").StatusCode == 200 {
					one[ns+"/"+ids[ns]] = true
				}
				if kind.context != "" {
					maps.Copy(searched, f.found(t, secret, ns, kind.context, ""))
				}
				if kind.topic != "" {
					maps.Copy(events, f.inEvents(t, server.URL, secret, ns, kind.topic+"&topic=Node"))
				}
			}
			compare("list of each namespace "+kind.list, single, all)
			if kind.one != "" {
				compare("one by one "+kind.one, one, all)
			}
			if kind.context != "" {
				compare("search for "+kind.context, searched, all)
			}
			if kind.topic != "" {
				compare("events of "+kind.topic, events, all)
			}
		}
		// The list of jobs needs another right than a job.
		jobs, searched, jobEvents, statuses := shownTo{}, shownTo{}, shownTo{}, f.listed(t, secret, "/v1/jobs/statuses?namespace=*", "ID")
		for _, ns := range namespaces {
			if f.sendAs(secret, "GET", "/v1/job/job-"+ns+"?namespace="+ns, "").StatusCode == 200 {
				jobs[ns+"/job-"+ns] = true
			}
			maps.Copy(searched, f.found(t, secret, ns, "jobs", "job-"))
			maps.Copy(jobEvents, f.inEvents(t, server.URL, secret, ns, "Job&topic=Node"))
		}
		compare("statuses of jobs", statuses, jobs)
		compare("events of jobs", jobEvents, jobs)
		compare("search for jobs", searched, jobs)
		var rights tokenRights
		f.mustDecode(t, f.sendAs(secret, "GET", tokenRightsPath, ""), &rights)
		claimed := shownTo{}
		for ns, capabilities := range rights.Namespaces {
			if slices.Contains(capabilities, "read-job") {
				claimed[ns+"/job-"+ns] = true
			}
		}
		compare("rights of the token", claimed, jobs)
	}
	if seen < 200 {
		t.Errorf("%d objects compared, so the policies grant too little", seen)
	}
}
