package model

import (
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestUnknownPorts(t *testing.T) {
	job := func(label, checkLabel string, ports ...string) *api.Job {
		network := &api.NetworkResource{}
		for _, p := range ports {
			network.DynamicPorts = append(network.DynamicPorts, api.Port{Label: p})
		}
		return &api.Job{TaskGroups: []*api.TaskGroup{nil, {
			Name: new("g"), Networks: []*api.NetworkResource{network},
			Services: []*api.Service{nil, {Name: "web", PortLabel: label, Checks: []api.ServiceCheck{{Name: "alive", PortLabel: checkLabel}}}},
		}}}
	}
	for _, c := range []struct {
		name string
		job  *api.Job
		want []string // entries in the form "path: reason"
	}{
		{"a label of the network", job("http", "http", "http"), nil},
		{"no label", job("", "", "http"), nil},
		{"a number", job("8080", "9090"), nil},
		{"a label that depends on the task", job("${NOMAD_META_port}", "x${y}"), nil},
		{"a letter swapped", job("htpp", "", "http", "admin"), []string{
			`group g service 1 port: service "web": port label "htpp" does not exist. Did you mean "http"?`}},
		{"a check with another label", job("http", "htt", "http"), []string{
			`group g service 1 check 0 port: check "alive" of service "web": port label "htt" does not exist. Did you mean "http"?`}},
		{"a check with the label of its service", job("nope", "nope", "http"), []string{
			`group g service 1 port: service "web": port label "nope" does not exist: the group has "http"`}},
		{"nothing alike", job("database", "", "http", "x"), []string{
			`group g service 1 port: service "web": port label "database" does not exist: the group has "http", "x"`}},
		{"no ports", job("http", ""), []string{
			`group g service 1 port: service "web": port label "http" does not exist: the group has no ports, write port "http" {} in its network block`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, r := range UnknownGroupPortLabelFaults(c.job) {
				got = append(got, strings.Join(r.Path, " ")+": "+r.Text)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "ab", 2}, {"http", "http", 0}, {"http", "htt", 1}, {"http", "htpp", 1}, {"http", "tcp", 2}} {
		if got := editDistance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
