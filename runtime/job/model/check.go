package model

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

const (
	minCheckInterval = time.Second
	minCheckTimeout  = time.Second
	maxCheckNotes    = 255
)

var (
	nomadCheckTypes  = []string{"tcp", "http"}
	consulCheckTypes = []string{"grpc", "tcp", "http", "script"}
	initialStatuses  = []string{"", "passing", "warning", "critical"}
	httpCheckMethods = []string{
		"", http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace,
	}
)

// A serviceCheckFaults collects a service check's errors. Each service provider formats them differently.
type serviceCheckFaults []string

func (l *serviceCheckFaults) addFault(format string, args ...any) {
	*l = append(*l, fmt.Sprintf(format, args...))
}

// nomadServiceCheckFaults returns the errors of a check in a service with provider nomad.
func nomadServiceCheckFaults(c api.ServiceCheck) []string {
	var l serviceCheckFaults
	l.checkCommonFields(c, nomadCheckTypes)
	if !slices.Contains(httpCheckMethods, strings.ToUpper(c.Method)) {
		l.addFault("method type %q not supported in Nomad http check", c.Method)
	}
	if c.AddressMode == "driver" {
		l.addFault("address_mode = driver may only be set for Consul service checks")
	}
	if c.OnUpdate == api.OnUpdateIgnoreWarn {
		l.addFault("on_update may only be set to ignore_warnings for Consul service checks")
	}
	if c.CheckRestart != nil && c.CheckRestart.IgnoreWarnings {
		l.addFault("ignore_warnings on check_restart only supported for Consul service checks")
	}
	for _, only := range []struct {
		name string
		set  bool
	}{
		{"expose", c.Expose},
		{"success_before_passing", c.SuccessBeforePassing > 0},
		{"failures_before_critical", c.FailuresBeforeCritical > 0},
		{"failures_before_warning", c.FailuresBeforeWarning > 0},
		{"tls_server_name", c.TLSServerName != ""},
	} {
		if only.set {
			l.addFault("%s may only be set for Consul service checks", only.name)
		}
	}
	return l
}

func consulServiceCheckFaults(c api.ServiceCheck) []string {
	var l serviceCheckFaults
	l.checkCommonFields(c, consulCheckTypes)
	if len(c.Notes) > maxCheckNotes {
		l.addFault("notes must not be longer than %d characters", maxCheckNotes)
	}
	return l
}

func (l *serviceCheckFaults) checkCommonFields(c api.ServiceCheck, allowedTypes []string) {
	kind := strings.ToLower(c.Type)
	if !slices.Contains(allowedTypes, kind) {
		l.addFault("invalid check type (%q), must be one of %s", c.Type, strings.Join(allowedTypes, ", "))
	}
	switch {
	case c.Interval == 0:
		l.addFault("missing required value interval. Interval cannot be less than %v", minCheckInterval)
	case c.Interval < minCheckInterval:
		l.addFault("interval (%v) cannot be lower than %v", c.Interval, minCheckInterval)
	}
	switch {
	case c.Timeout == 0:
		l.addFault("missing required value timeout. Timeout cannot be less than %v", minCheckTimeout)
	case c.Timeout < minCheckTimeout:
		l.addFault("timeout (%v) is lower than required minimum timeout %v", c.Timeout, minCheckTimeout)
	}
	if kind == "http" {
		l.checkHTTPPath(c.Path)
	}
	if c.AddressMode == "auto" {
		l.addFault("invalid address_mode %q - auto only valid for services", c.AddressMode)
	}
	if !slices.Contains(initialStatuses, c.InitialStatus) {
		l.addFault(`invalid initial check state (%s), must be one of "passing", "warning", "critical" or empty`, c.InitialStatus)
	}
	if !slices.Contains(onUpdateValues, c.OnUpdate) {
		l.addFault(`on_update must be "require_healthy", "ignore_warnings", or "ignore"; got %q`, c.OnUpdate)
	}
	if c.CheckRestart != nil {
		l.checkRestartBlock(c)
	}
}

func (l *serviceCheckFaults) checkHTTPPath(path string) {
	if path == "" {
		l.addFault("http type must have http path")
		return
	}
	if u, err := url.Parse(path); err != nil || u.IsAbs() {
		l.addFault("http type must have relative http path")
	}
}

func (l *serviceCheckFaults) checkRestartBlock(c api.ServiceCheck) {
	if c.OnUpdate == api.OnUpdateIgnore {
		l.addFault("on_update value %q is not compatible with check_restart", c.OnUpdate)
	}
	if c.CheckRestart.Limit < 0 {
		l.addFault("limit must be greater than or equal to 0 but found %d", c.CheckRestart.Limit)
	}
	if grace := pointer.Value(c.CheckRestart.Grace); grace < 0 {
		l.addFault("grace period must be greater than or equal to 0 but found %d", grace)
	}
}

func checkServiceCheckHasPort(r *faultReport, s *api.Service, c api.ServiceCheck) {
	if strings.ToLower(c.Type) != "script" && c.Type != "" && c.PortLabel == "" && s.PortLabel == "" {
		r.addFault("Check %s invalid: check requires a port but neither check nor service %q have a port", c.Name, s.Name)
	}
}
