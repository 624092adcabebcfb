package apiclient

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestFindJob(t *testing.T) {
	jobs := []string{
		`{"ID": "web", "JobSummary": {"Namespace": "old"}}`,
		`{"ID": "web-2", "Namespace": "default"}`,
		`{"ID": "mail", "ParameterizedJob": true}`,
		`{"ID": "mail/dispatch-1", "ParentID": "mail", "ParameterizedJob": true}`,
		`{"ID": "two", "Namespace": "a"}`,
		`{"ID": "two", "Namespace": "b"}`,
	}
	// This server filters by prefix only, like older servers.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("filter") != "" {
			http.Error(w, "failed to create result paginator: failed to read filter expression", http.StatusBadRequest)
			return
		}
		if r.FormValue("prefix") == "secret" {
			http.Error(w, "Permission denied", http.StatusForbidden)
			return
		}
		var fit []string
		for _, job := range jobs {
			if strings.HasPrefix(job, `{"ID": "`+r.FormValue("prefix")) {
				fit = append(fit, job)
			}
		}
		fmt.Fprintf(w, "[%s]", strings.Join(fit, ","))
	}))
	defer server.Close()
	c, err := api.NewClient(&api.Config{Address: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ prefix, filter, id, namespace, says string }{
		{prefix: "web", id: "web", namespace: "old"},
		{prefix: " web-", id: "web-2", namespace: "default"},
		{prefix: "we", says: "web-2"},
		{prefix: "two", says: `Prefix "two" matched multiple jobs`},
		{prefix: "x", says: "No job(s) with prefix or ID"},
		{prefix: "m", filter: ParameterizedJobsFilter, id: "mail"},
		{prefix: "m", filter: PeriodicJobsFilter, says: "No periodic job(s) with prefix or ID"},
		{prefix: "secret", id: "secret"},
	} {
		id, namespace, err := FindJob(t.Context(), c, test.prefix, test.filter)
		switch {
		case test.says != "":
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%q: got %q and error %v, want %q", test.prefix, id, err, test.says)
			}
		case err != nil || id != test.id || namespace != test.namespace:
			t.Errorf("%q: got %q in %q (%v), want %q in %q", test.prefix, id, namespace, err, test.id, test.namespace)
		}
	}
}
