package services

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
)

// Spec is the service data of one version of an allocation. Maps and slices are shared and never
// changed.
type Spec struct {
	AllocID    string
	AllocName  string // "<job>.<group>[<index>]"
	Namespace  string
	JobID      string
	Group      string
	NodeID     string
	Datacenter string
	Canary     bool // an unpromoted canary

	HostIP      string                 // IP address of the group's network, if it has one
	Ports       []taskenv.Port         // ports of the group
	TaskNets    map[string]TaskNetwork // deprecated in job files
	Address     string                 // address of the allocation's own network; may be empty
	AddressIPv6 string

	Services []Service // only services of provider nomad
}

// TaskNetwork is the network of a single task.
type TaskNetwork struct {
	IP    string
	Ports []taskenv.Port
}

// Service is one service of the job.
type Service struct {
	Task        string // task of the service; empty for a service of the group
	Name        string
	Port        string // port label, port number, or empty
	Address     string
	AddressMode string
	Tags        []string
	CanaryTags  []string
	Checks      []Check
}

// Check is one check of the job, with the values that it inherits from its service.
type Check struct {
	Name          string
	Type          string // "tcp" or "http"
	Port          string // port of the check; empty for the port of the service
	AddressMode   string // address mode of the check; empty for the address mode of the service
	OnUpdate      string
	Interval      time.Duration
	Timeout       time.Duration
	Protocol      string
	Method        string
	Path          string
	Header        map[string][]string
	Body          string
	TLSSkipVerify bool
	Restart       CheckRestart
	For           string // task to whose health a check of the group contributes; may be empty
}

// CheckRestart is the check_restart block. A zero Limit disables it.
type CheckRestart struct {
	Limit int
	Grace time.Duration
}

// Interpolate returns the service with all references to the environment resolved. Registrations
// and checks both use it, at the start and at each update: a service of a task is resolved with
// the environment of that task, a service of the group with the environment of the allocation.
func (s Service) Interpolate(env *taskenv.Env) Service {
	s.Name = env.Replace(s.Name)
	s.Port = env.Replace(s.Port)
	s.Address = env.Replace(s.Address)
	s.Tags = interpolateAll(env, s.Tags)
	s.CanaryTags = interpolateAll(env, s.CanaryTags)
	s.Checks = slices.Clone(s.Checks)
	for i := range s.Checks {
		s.Checks[i] = s.Checks[i].interpolate(env)
	}
	return s
}

func (c Check) interpolate(env *taskenv.Env) Check {
	for _, field := range []*string{&c.Name, &c.Type, &c.Port, &c.Protocol, &c.Method, &c.Path} {
		*field = env.Replace(*field)
	}
	if c.Header != nil {
		header := make(map[string][]string, len(c.Header))
		for _, key := range slices.Sorted(maps.Keys(c.Header)) {
			name := env.Replace(key)
			header[name] = append(header[name], interpolateAll(env, c.Header[key])...)
		}
		c.Header = header
	}
	return c
}

func interpolateAll(env *taskenv.Env, list []string) []string {
	if list == nil {
		return nil
	}
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = env.Replace(s)
	}
	return out
}

// validateName rejects a name that is invalid after interpolation.
func validateName(name string) error {
	if model.ValidServiceName(name) {
		return nil
	}
	return fmt.Errorf("service name must be valid per RFC 1123 and can contain only alphanumeric characters or dashes and must be no longer than 63 characters: %q", name)
}
