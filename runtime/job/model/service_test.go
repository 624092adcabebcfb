package model

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// nomadService returns a valid service with provider nomad, changed by edit.
func nomadService(edit func(*api.Service)) *api.Service {
	s := &api.Service{Name: "a", Provider: "nomad", PortLabel: "http"}
	edit(s)
	return s
}

func groupService(edit func(*api.Service)) func(*jobFixture) {
	return func(f *jobFixture) { f.group.Services = []*api.Service{nomadService(edit)} }
}

func taskService(edit func(*api.Service)) func(*jobFixture) {
	return func(f *jobFixture) {
		f.group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}}
		f.task.Services = []*api.Service{nomadService(edit)}
	}
}

func TestValidateService(t *testing.T) {
	name := func(n string) func(*jobFixture) { return groupService(func(s *api.Service) { s.Name = n }) }
	const invalidNameText = "Service name must be valid per RFC 1123 and can contain only alphanumeric characters or dashes and must be no longer than 63 characters: "
	runFaultCases(t, []faultCase{
		{"of a group", groupService(func(*api.Service) {}), nil},
		{"of a task", taskService(func(*api.Service) {}), nil},
		{"with consul, the default", groupService(func(s *api.Service) { s.Provider = "" }), nil},
		{"a name with an underscore", name("a_b"), wantSingleFault(invalidNameText + `"a_b"`)},
		{"a name that is too long", name(strings.Repeat("a", 64)), wantSingleFault(invalidNameText + `"` + strings.Repeat("a", 64) + `"`)},
		{"a name known at run time", name("${NOMAD_ALLOC_ID}-x"), nil},
		{"a name of capitals", name("A-1"), nil},
		{"an unknown provider", groupService(func(s *api.Service) { s.Provider = "x" }), wantSingleFault(`Service provider must be "consul", or "nomad"; not "x"`)},
		{"an unknown address_mode", groupService(func(s *api.Service) { s.AddressMode = "x" }), wantSingleFault(`Service address_mode must be "auto", "host", or "driver"; not "x"`)},
		{"address_mode driver of a group", groupService(func(s *api.Service) { s.AddressMode = "driver" }), wantSingleFault(`service "a" cannot use address_mode="driver", only services defined in a "task" block can use this mode`)},
		{"address_mode alloc of a task", taskService(func(s *api.Service) { s.AddressMode = "alloc" }), wantSingleFault(`service "a" cannot use address_mode="alloc", only services defined in a "group" block can use this mode`)},
		{"address_mode alloc_ipv6 of a task", taskService(func(s *api.Service) { s.AddressMode = "alloc_ipv6" }), wantSingleFault(`service "a" cannot use address_mode="alloc_ipv6", only services defined in a "group" block can use this mode`)},
		{"an address and a mode", groupService(func(s *api.Service) { s.Address, s.AddressMode = "x", "host" }), wantSingleFault(`Service address_mode must be "auto" if address is set`)},
		{"an unknown on_update", groupService(func(s *api.Service) { s.OnUpdate = "x" }), wantSingleFault(`Service on_update must be "require_healthy", "ignore_warnings", or "ignore"; not "x"`)},
		{"an identity for nobody", groupService(func(s *api.Service) { s.Identity = &api.WorkloadIdentity{} }), wantSingleFault("Service identity must provide at least one target aud value")},
		{"the port of a group is not looked up", groupService(func(s *api.Service) { s.PortLabel = "nope" }), nil},
		{"an unknown port of a task", taskService(func(s *api.Service) { s.PortLabel = "nope" }), wantSingleFault(`port label "nope" referenced by services a does not exist`)},
		{"a numeric port of a task", taskService(func(s *api.Service) { s.PortLabel = "80" }), wantSingleFault(`port label "80" referenced by services a does not exist`)},
		{"a numeric port in address_mode driver", taskService(func(s *api.Service) { s.PortLabel, s.AddressMode = "80", "driver" }), nil},
		{"a port of the second network", func(f *jobFixture) {
			taskService(func(s *api.Service) { s.PortLabel = "b" })(f)
			f.group.Networks = append(f.group.Networks, &api.NetworkResource{DynamicPorts: []api.Port{{Label: "b"}}})
		}, wantSingleFault(`port label "b" referenced by services a does not exist`)},
		{"a port of the task's own network", func(f *jobFixture) {
			taskService(func(s *api.Service) { s.PortLabel = "b" })(f)
			f.task.Resources = &api.Resources{Networks: []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "b"}}}}}
		}, nil},
		{"another task", taskService(func(s *api.Service) { s.TaskName = "zzz" }), wantSingleFault(`Service a is invalid: may only specify task the service belongs to, got "zzz"`)},
		{"two providers", func(f *jobFixture) {
			groupService(func(*api.Service) {})(f)
			f.group.Services = append(f.group.Services, &api.Service{Name: "b"})
		}, wantSingleFault("Multiple service providers used: task group services must use the same provider")},
		{"one twice in a group", func(f *jobFixture) {
			f.group.Services = []*api.Service{nomadService(func(*api.Service) {}), nomadService(func(*api.Service) {})}
		}, wantSingleFault("Services are not unique: [group->a:http]")},
		{"one twice in a task", func(f *jobFixture) {
			taskService(func(*api.Service) {})(f)
			f.task.Services = append(f.task.Services, nomadService(func(*api.Service) {}))
		}, []string{"Services are not unique: [t->a:http]", `service "a" is duplicate`}},
		{"in another cluster of consul", groupService(func(s *api.Service) { s.Provider, s.Cluster = "consul", "x" }), wantSingleFault("non-default Consul cluster requires Nomad Enterprise")},
		{"connect with provider nomad", groupService(func(s *api.Service) { s.Connect = &api.ConsulConnect{SidecarService: &api.ConsulSidecarService{}} }),
			[]string{`connect sidecar: invalid network mode for Consul Connect: group "g" uses network mode ""; must be "bridge" or "cni/*"`, "Service with provider nomad cannot include Connect blocks"}},
		{"connect of a task", taskService(func(s *api.Service) { s.Provider, s.Connect = "consul", &api.ConsulConnect{} }), wantSingleFault(`service "a" cannot have "connect" block, only services defined in a "group" block can`)},
	})
}

func TestValidateCheck(t *testing.T) {
	check := func(edit func(*api.ServiceCheck)) func(*api.Service) {
		return func(s *api.Service) {
			c := api.ServiceCheck{Type: "http", Path: "/", Interval: time.Second, Timeout: time.Second}
			edit(&c)
			s.Checks = append(s.Checks, c)
		}
	}
	group := func(edit func(*api.ServiceCheck)) func(*jobFixture) { return groupService(check(edit)) }
	consul := func(edit func(*api.ServiceCheck)) func(*jobFixture) {
		return groupService(func(s *api.Service) { s.Provider = "consul"; check(edit)(s) })
	}
	task := func(edit func(*api.ServiceCheck)) func(*jobFixture) { return taskService(check(edit)) }
	restart := func(edit func(*api.CheckRestart)) func(*jobFixture) {
		return group(func(c *api.ServiceCheck) { c.CheckRestart = &api.CheckRestart{Limit: 1}; edit(c.CheckRestart) })
	}
	const onlyConsulText = " may only be set for Consul service checks"
	runFaultCases(t, []faultCase{
		{"a good one", group(func(*api.ServiceCheck) {}), nil},
		{"RS-085 a script with provider nomad", group(func(c *api.ServiceCheck) { c.Type = "script" }),
			[]string{`invalid check type ("script"), must be one of tcp, http`, `Service [g]->a or Check service: "a" check must specify task parameter`}},
		{"no type", group(func(c *api.ServiceCheck) { c.Type = "" }), wantSingleFault(`invalid check type (""), must be one of tcp, http`)},
		{"an unknown type with consul", consul(func(c *api.ServiceCheck) { c.Name, c.Type = "n", "x" }), wantSingleFault(`Check n invalid: invalid check type ("x"), must be one of grpc, tcp, http, script`)},
		{"no interval", group(func(c *api.ServiceCheck) { c.Interval = 0 }), wantSingleFault("missing required value interval. Interval cannot be less than 1s")},
		{"too short an interval", group(func(c *api.ServiceCheck) { c.Interval = 10 * time.Millisecond }), wantSingleFault("interval (10ms) cannot be lower than 1s")},
		{"no timeout", group(func(c *api.ServiceCheck) { c.Timeout = 0 }), wantSingleFault("missing required value timeout. Timeout cannot be less than 1s")},
		{"too short a timeout", group(func(c *api.ServiceCheck) { c.Timeout = time.Millisecond }), wantSingleFault("timeout (1ms) is lower than required minimum timeout 1s")},
		{"the same with consul", consul(func(c *api.ServiceCheck) { c.Name, c.Timeout = "n", 0 }), wantSingleFault("Check n invalid: missing required value timeout. Timeout cannot be less than 1s")},
		{"no path", group(func(c *api.ServiceCheck) { c.Path = "" }), wantSingleFault("http type must have http path")},
		{"a whole URL", group(func(c *api.ServiceCheck) { c.Path = "http://x/" }), wantSingleFault("http type must have relative http path")},
		{"no port anywhere", groupService(func(s *api.Service) {
			s.PortLabel = ""
			check(func(c *api.ServiceCheck) { c.Name = "n" })(s)
		}), wantSingleFault(`Check n invalid: check requires a port but neither check nor service "a" have a port`)},
		{"a numeric port of a task", task(func(c *api.ServiceCheck) { c.Name, c.PortLabel = "x", "80" }), wantSingleFault(`check "x" cannot use a numeric port 80 without setting address_mode="driver"`)},
		{"an unknown port of a task", task(func(c *api.ServiceCheck) { c.PortLabel = "nope" }), wantSingleFault(`port label "nope" referenced by services a does not exist`)},
		{"one twice", taskService(func(s *api.Service) {
			check(func(*api.ServiceCheck) {})(s)
			check(func(*api.ServiceCheck) {})(s)
		}), wantSingleFault(`check "service: \"a\" check" is duplicate`)},
		{"address_mode auto", group(func(c *api.ServiceCheck) { c.AddressMode = "auto" }), wantSingleFault(`invalid address_mode "auto" - auto only valid for services`)},
		{"address_mode driver", group(func(c *api.ServiceCheck) { c.AddressMode = "driver" }), wantSingleFault("address_mode = driver may only be set for Consul service checks")},
		{"an unknown method", group(func(c *api.ServiceCheck) { c.Method = "FOO" }), wantSingleFault(`method type "FOO" not supported in Nomad http check`)},
		{"a method in any case", group(func(c *api.ServiceCheck) { c.Method = "pOsT" }), nil},
		{"an unknown initial_status", group(func(c *api.ServiceCheck) { c.InitialStatus = "x" }), wantSingleFault(`invalid initial check state (x), must be one of "passing", "warning", "critical" or empty`)},
		{"an unknown on_update", group(func(c *api.ServiceCheck) { c.OnUpdate = "x" }), wantSingleFault(`on_update must be "require_healthy", "ignore_warnings", or "ignore"; got "x"`)},
		{"on_update ignore_warnings", group(func(c *api.ServiceCheck) { c.OnUpdate = "ignore_warnings" }), wantSingleFault("on_update may only be set to ignore_warnings for Consul service checks")},
		{"on_update ignore and check_restart", group(func(c *api.ServiceCheck) { c.OnUpdate, c.CheckRestart = "ignore", &api.CheckRestart{} }), wantSingleFault(`on_update value "ignore" is not compatible with check_restart`)},
		{"on_update is the service's", groupService(func(s *api.Service) {
			s.OnUpdate = "ignore_warnings"
			check(func(*api.ServiceCheck) {})(s)
		}), wantSingleFault("on_update may only be set to ignore_warnings for Consul service checks")},
		{"a task that is not there", group(func(c *api.ServiceCheck) { c.Name, c.TaskName = "n", "zz" }), wantSingleFault("Check n invalid: refers to non-existent task zz")},
		{"a negative limit", restart(func(c *api.CheckRestart) { c.Limit = -1 }), wantSingleFault("limit must be greater than or equal to 0 but found -1")},
		{"a negative grace", restart(func(c *api.CheckRestart) { c.Grace = new(-time.Second) }), wantSingleFault("grace period must be greater than or equal to 0 but found -1000000000")},
		{"ignore_warnings", restart(func(c *api.CheckRestart) { c.IgnoreWarnings = true }), wantSingleFault("ignore_warnings on check_restart only supported for Consul service checks")},
		{"a script of consul without a task", consul(func(c *api.ServiceCheck) { c.Name, c.Type = "n", "script" }), wantSingleFault("Service [g]->a or Check n must specify task parameter")},
		{"expose", group(func(c *api.ServiceCheck) { c.Expose = true }), wantSingleFault("expose" + onlyConsulText)},
		{"expose without a sidecar", consul(func(c *api.ServiceCheck) { c.Name, c.Expose = "n", true }), wantSingleFault(`check "n" of service "a" sets expose, which requires the sidecar_service of a connect block: remove expose`)},
		{"thresholds", group(func(c *api.ServiceCheck) {
			c.SuccessBeforePassing, c.FailuresBeforeCritical, c.FailuresBeforeWarning = 1, 1, 1
		}), []string{"success_before_passing" + onlyConsulText, "failures_before_critical" + onlyConsulText, "failures_before_warning" + onlyConsulText}},
		{"a negative threshold counts as none", group(func(c *api.ServiceCheck) { c.SuccessBeforePassing = -1 }), nil},
		{"tls_server_name", group(func(c *api.ServiceCheck) { c.TLSServerName = "x" }), wantSingleFault("tls_server_name" + onlyConsulText)},
	})
}

// Service error texts have different prefixes in groups and in tasks.
func TestServiceErrorText(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*jobFixture)
		want string
	}{
		{"of a group", groupService(func(s *api.Service) { s.Name = "_" }), "Task group service validation failed: 1 error occurred:\n\t* Service[0] _ validation failed: 1 error occurred:\n\t* Service name must be"},
		{"of a task", taskService(func(s *api.Service) { s.Name = "_" }), "\t* Task t validation failed: 1 error occurred:\n\t* 1 error occurred:\n\t* service[0] \"_\" validation failed: 1 error occurred:\n\t* Service name must be"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Validate(newJobFixture(c.edit).job, JobLimits{}).Error(); !strings.Contains(got, c.want) {
				t.Errorf("error\n got %q\nwant it to contain %q", got, c.want)
			}
		})
	}
}

func TestServiceNameFaults(t *testing.T) {
	for name, want := range map[string]string{
		"web-1":                 "",
		"web_1":                 `it contains '_', and only letters, digits and dashes are allowed`,
		"wéb":                   `it contains 'é', and only letters, digits and dashes are allowed`,
		"":                      "it is empty",
		"web-":                  "it starts or ends with a dash",
		strings.Repeat("a", 64): "it has 64 characters, and 63 are allowed",
	} {
		if got := ServiceNameFault(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}
