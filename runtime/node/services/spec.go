package services

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// AllocServicesSpec has the services in one version of an allocation, and the allocation's fields for their registrations. Maps
// and slices are shared with other values, so they must not be changed.
type AllocServicesSpec struct {
	AllocID    string
	AllocName  string // "<job>.<group>[<index>]"
	Namespace  string
	JobID      string
	Group      string
	NodeID     string
	Datacenter string
	IsCanary   bool // the allocation is an unpromoted canary

	GroupHostIP   string                 // the group network's IP address, if any
	Ports         []taskenv.Port         // the group's ports
	NetworkByTask map[string]TaskNetwork // task -> network from its deprecated network block
	NamespaceIPv4 string                 // the allocation network namespace's IPv4 address; may be empty
	NamespaceIPv6 string                 // the allocation network namespace's IPv6 address; may be empty

	Services []Service
}

// TaskNetwork is the network for a task with a deprecated network block.
type TaskNetwork struct {
	IP    string
	Ports []taskenv.Port
}

// Service is a service block in the job.
type Service struct {
	Task        string // the service's task; empty for a group service
	Name        string
	PortLabel   string // port label, port number, or empty
	Address     string
	AddressMode string
	Tags        []string
	CanaryTags  []string
	Checks      []Check
}

// Check is a check block in the job, with the values inherited from its service. It is large because a check block has parameters
// for each type.
type Check struct {
	Name                string
	Type                string // "tcp", "http", "grpc" or "script"
	PortLabel           string // the check's port; empty for the service's port
	AddressMode         string // the check's address mode; empty for the service's address mode
	OnUpdate            string
	Interval            time.Duration
	Timeout             time.Duration
	Protocol            string
	Method              string
	Path                string
	Header              map[string][]string
	Body                string
	TLSSkipVerify       bool
	Command             string // a script's program
	Args                []string
	ScriptTask          string // task where a script runs
	GRPCService         string // name in the gRPC health protocol; empty for the whole server
	GRPCUseTLS          bool
	SuccessesToPass     int // consecutive successes before a failing check passes; 0 and 1 are the same
	FailuresToFail      int // consecutive failures before a passing check fails; 0 and 1 are the same
	Restart             CheckRestart
	AffectsHealthOfTask string // a group check counts in this task's health; may be empty
}

// CheckRestart is a check's check_restart block. With Limit 0, the check never restarts its workload.
type CheckRestart struct {
	Limit int           // consecutive unhealthy results before the workload is restarted
	Grace time.Duration // time after the workload's start while results are ignored
}

// Interpolate returns the service with all references to the environment resolved. env must be the service's task environment, or
// the allocation's environment for a group service.
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

// validateServiceName returns an error if a service name is invalid after interpolation.
func validateServiceName(name string) error {
	reason := model.ServiceNameFault(name)
	if reason == "" {
		return nil
	}
	if unset := taskenv.References(name); len(unset) > 0 {
		reason = fmt.Sprintf("nothing sets ${%s}", unset[0])
	}
	return fmt.Errorf("service name must be valid per RFC 1123 and can contain only alphanumeric characters or dashes and must be no longer than 63 characters: %q: %s", name, reason)
}
