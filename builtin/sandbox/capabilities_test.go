package sandbox

import (
	"strings"
	"testing"
)

const defaults = "audit_write, chown, dac_override, fowner, fsetid, kill, mknod, net_bind_service, setfcap, setgid, setpcap, setuid, sys_chroot"

func TestResolve(t *testing.T) {
	for _, test := range []struct {
		name               string
		allowed, add, drop []string
		bounding, ambient  string
		err                string
	}{
		{"the defaults", DefaultCapabilities, nil, nil, defaults, "net_bind_service", ""},
		{"a default is added for another user", DefaultCapabilities, []string{"chown"}, nil, defaults, "chown, net_bind_service", ""},
		{"a capability is dropped", DefaultCapabilities, nil, []string{"CAP_NET_BIND_SERVICE"}, strings.Replace(defaults, "net_bind_service, ", "", 1), "", ""},
		{"all are dropped, and one is added", DefaultCapabilities, []string{"kill"}, []string{"all"}, "kill", "kill", ""},
		{"the operator allows less", []string{"chown", "kill"}, nil, nil, "chown, kill", "", ""},
		{"the operator allows none", []string{}, nil, nil, "", "", ""},
		{"all that the operator allows", []string{"net_raw", "kill"}, []string{"all"}, nil, "kill, net_raw", "kill, net_raw", ""},
		{"the operator allows all", []string{"all"}, []string{"sys_admin"}, []string{"all"}, "sys_admin", "sys_admin", ""},
		{"more than the operator allows", DefaultCapabilities, []string{"net_raw", "chown", "sys_admin"}, nil, "", "", "cap_add: driver does not allow the following capabilities: net_raw, sys_admin;"},
		{"an unknown name", DefaultCapabilities, []string{"root"}, nil, "", "", `cap_add: there is no capability "root"`},
		{"an unknown name to drop", DefaultCapabilities, nil, []string{"root"}, "", "", `cap_drop: there is no capability "root"`},
	} {
		got, err := CapabilityRequest{test.allowed, test.add, test.drop}.Resolve()
		if test.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("%s: error %v, want %s", test.name, err, test.err)
			}
			continue
		}
		if err != nil || got.Bounding.String() != test.bounding || got.Ambient.String() != test.ambient {
			t.Errorf("%s: %v; bounding %s, ambient %s; want %s and %s", test.name, err, got.Bounding, got.Ambient, test.bounding, test.ambient)
		}
	}
}
