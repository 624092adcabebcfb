package services

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// AllocServicesSpec has the services of one version of an allocation, and the fields of the allocation that their
// registrations need. Maps and slices are shared with other values, so they must not be changed.
type AllocServicesSpec struct {
	AllocID    string
	AllocName  string // "<job>.<group>[<index>]"
	Namespace  string
	JobID      string
	Group      string
	NodeID     string
	Datacenter string
	IsCanary   bool // the allocation is a canary that is not promoted

	GroupHostIP   string                 // IP address of the group's network, if it has one
	Ports         []taskenv.Port         // ports of the group
	NetworkByTask map[string]TaskNetwork // task -> network of its deprecated network block
	NamespaceIPv4 string                 // IPv4 address of the allocation's network namespace; may be empty
	NamespaceIPv6 string                 // IPv6 address of the allocation's network namespace; may be empty

	Services []Service
}

// TaskNetwork is the network of a task that has a network block in the job, which is deprecated.
type TaskNetwork struct {
	IP    string
	Ports []taskenv.Port
}

// Service is a service block of the job.
type Service struct {
	Task        string // task of the service; empty for a service of the group
	Name        string
	PortLabel   string // port label, port number, or empty
	Address     string
	AddressMode string
	Tags        []string
	CanaryTags  []string
	Checks      []Check
}

// Check is a check block of the job, with the values that it inherits from its service. It is large because a check block has
// parameters for each type.
type Check struct {
	Name                string
	Type                string // "tcp", "http", "grpc" or "script"
	PortLabel           string // port of the check; empty for the port of the service
	AddressMode         string // address mode of the check; empty for the address mode of the service
	OnUpdate            string
	Interval            time.Duration
	Timeout             time.Duration
	Protocol            string
	Method              string
	Path                string
	Header              map[string][]string
	Body                string
	TLSSkipVerify       bool
	Command             string // program of a script
	Args                []string
	ScriptTask          string // task in which a script runs
	GRPCService         string // name in the health protocol of gRPC; empty for the whole server
	GRPCUseTLS          bool
	SuccessesToPass     int // consecutive successes after which a failing check passes; 0 and 1 are the same
	FailuresToFail      int // consecutive failures after which a check that does not fail yet fails; 0 and 1 are the same
	Restart             CheckRestart
	AffectsHealthOfTask string // task to whose health a check of the group contributes; may be empty
}

// CheckRestart is the check_restart block of a check. With Limit 0, the check never restarts its workload.
type CheckRestart struct {
	Limit int           // number of consecutive unhealthy results that restart the workload
	Grace time.Duration // time after the start of the workload in which results are ignored
}

// Interpolate returns the service with all references to the environment resolved. env must be the environment of
// the service's task, or that of the allocation for a service of the group.
func (s Service) Interpolate(env *taskenv.Env) Service {
	s.Name = env.ReplaceReferences(s.Name)
	s.PortLabel = env.ReplaceReferences(s.PortLabel)
	s.Address = env.ReplaceReferences(s.Address)
	s.Tags = interpolateStrings(env, s.Tags)
	s.CanaryTags = interpolateStrings(env, s.CanaryTags)
	s.Checks = slices.Clone(s.Checks)
	for i := range s.Checks {
		s.Checks[i] = s.Checks[i].interpolate(env)
	}
	return s
}

func (c Check) interpolate(env *taskenv.Env) Check {
	for _, field := range []*string{&c.Name, &c.Type, &c.PortLabel, &c.Protocol, &c.Method, &c.Path, &c.Command, &c.GRPCService} {
		*field = env.ReplaceReferences(*field)
	}
	c.Args = interpolateStrings(env, c.Args)
	if c.Header != nil {
		header := make(map[string][]string, len(c.Header))
		for _, key := range slices.Sorted(maps.Keys(c.Header)) {
			name := env.ReplaceReferences(key)
			header[name] = append(header[name], interpolateStrings(env, c.Header[key])...)
		}
		c.Header = header
	}
	return c
}

func interpolateStrings(env *taskenv.Env, list []string) []string {
	if list == nil {
		return nil
	}
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = env.ReplaceReferences(s)
	}
	return out
}

// validateServiceName returns an error if the name of a service, after interpolation, is invalid.
func validateServiceName(name string) error {
	if model.ValidServiceName(name) {
		return nil
	}
	return fmt.Errorf("service name must be valid per RFC 1123 and can contain only alphanumeric characters or dashes and must be no longer than 63 characters: %q", name)
}
