package compose

import (
	"slices"
	"strings"
)

// warnOfFields warns of the fields of a mapping that are not converted. Fields of extensions (x-…) and fields without a value are
// no fields.
func (c *converter) warnOfFields(v *value, owner string, converted ...string) {
	if v == nil {
		return
	}
	for _, key := range v.keys {
		if v.get(key) != nil && !strings.HasPrefix(key, "x-") && !slices.Contains(converted, key) {
			c.Add(v.fields[key].at, "%s of %s has no counterpart", key, owner)
		}
	}
}

// warnOfNestedKeys warns of the keys inside of the keys of a service that are not converted. build, deploy, networks and ports
// have warnings where they are converted.
func (c *converter) warnOfNestedKeys(s *service) {
	healthcheck := s.get("healthcheck")
	switch {
	case s.hasHealthcheck:
		c.warnOfFields(healthcheck, "the health check of "+s.name, "test", "interval", "timeout", "retries", "start_period", "start_interval", "disable")
	case isHealthcheckDisabled(healthcheck):
		c.warnOfFields(healthcheck, "the disabled health check of "+s.name, "test", "disable")
	default:
		c.warnOfFields(healthcheck, "the health check of "+s.name+", which has no test,", "test", "disable")
	}
	policy := s.get("deploy").get("restart_policy")
	policyKeys := []string{"condition", "delay", "max_attempts"}
	if policy.get("max_attempts") != nil {
		policyKeys = append(policyKeys, "window")
	}
	c.warnOfFields(policy, "restart_policy of "+s.name, policyKeys...)
	c.warnOfFields(s.get("logging"), "logging of "+s.name, "driver", "options")
	for _, nested := range []struct {
		key   string
		known []string
	}{
		{"depends_on", []string{"condition", "restart", "required"}},
		{"ulimits", []string{"soft", "hard"}},
	} {
		if all := s.get(nested.key); all != nil {
			for _, name := range all.keys {
				c.warnOfFields(all.fields[name], nested.key+" of "+s.name, nested.known...)
			}
		}
	}
	for _, nested := range []struct {
		key   string
		known []string
	}{
		{"env_file", []string{"path", "required", "format"}},
		{"devices", []string{"source", "target", "permissions"}},
		{"secrets", []string{"source", "target", "uid", "gid", "mode"}},
		{"configs", []string{"source", "target", "uid", "gid", "mode"}},
	} {
		if all := s.get(nested.key); all != nil {
			for _, item := range all.items {
				c.warnOfFields(item, nested.key+" of "+s.name, nested.known...)
			}
		}
	}
}

// warnOfVolumeKeys warns of the keys of a volume of a service that are not converted. consistency has no effect on Linux.
func (c *converter) warnOfVolumeKeys(v *value, kind string) {
	known := map[string][]string{
		"bind":   {"propagation", "create_host_path", "selinux"},
		"volume": {"nocopy", "subpath"},
		"tmpfs":  {"size", "mode"},
	}
	c.warnOfFields(v, "a volume", "type", "source", "target", "read_only", "mode", "consistency", "create", kind)
	c.warnOfFields(v.get(kind), kind+" of a volume", known[kind]...)
}

// warnOfDeclaredKeys warns of the keys of declared volumes, secrets and configs that are not converted.
func (c *converter) warnOfDeclaredKeys() {
	for _, declared := range []struct {
		key   string
		known []string
	}{
		{"volumes", []string{"name", "external", "driver", "driver_opts", "labels"}},
		{"secrets", []string{"file", "environment", "content", "external"}},
		{"configs", []string{"file", "environment", "content", "external"}},
	} {
		if all := c.project.get(declared.key); all != nil {
			for _, name := range all.keys {
				c.warnOfFields(all.fields[name], name+" of "+declared.key, declared.known...)
			}
		}
	}
}
