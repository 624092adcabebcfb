package sandbox

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const (
	ofUsers = "audit_write, kill, net_bind_service"
	ofRoot  = "audit_write, chown, dac_override, fowner, kill, net_bind_service, sys_chroot"
	ofNomad = "audit_write, chown, dac_override, fowner, fsetid, kill, mknod, net_bind_service, setfcap, setgid, setpcap, setuid, sys_chroot"
)

func TestResolve(t *testing.T) {
	nomad := strings.Split(ofNomad, ", ")
	all := []string{"all"}
	for _, test := range []struct {
		name              string
		request           CapabilityRequest
		bounding, ambient string
		err               string
	}{
		{"the defaults of a user", CapabilityRequest{}, ofUsers, "net_bind_service", ""},
		{"the defaults of root", CapabilityRequest{IsRoot: true}, ofRoot, "net_bind_service", ""},
		{"all that a user can have", CapabilityRequest{Add: all}, ofUsers, ofUsers, ""},
		{"a default of root for a user", CapabilityRequest{Add: []string{"dac_override"}}, "", "", "cap_add: driver does not allow the following capabilities: dac_override;"},
		{"another identity for root", CapabilityRequest{Add: []string{"setuid"}, IsRoot: true}, "", "", "cap_add: driver does not allow the following capabilities: setuid;"},
		{"Nomad's default", CapabilityRequest{AllowCaps: nomad, IsRoot: true}, ofNomad, "net_bind_service", ""},
		{"a granted capability is added", CapabilityRequest{AllowCaps: nomad, Add: []string{"chown"}}, ofNomad, "chown, net_bind_service", ""},
		{"a capability is dropped", CapabilityRequest{Drop: []string{"CAP_NET_BIND_SERVICE"}}, "audit_write, kill", "", ""},
		{"all are dropped, and one is added", CapabilityRequest{Add: []string{"kill"}, Drop: all}, "kill", "kill", ""},
		{"the operator allows less", CapabilityRequest{AllowCaps: []string{"chown", "kill"}}, "chown, kill", "", ""},
		{"the operator allows none", CapabilityRequest{AllowCaps: []string{}}, "", "", ""},
		{"all that the operator allows", CapabilityRequest{AllowCaps: []string{"net_raw", "kill"}, Add: all}, "kill, net_raw", "kill, net_raw", ""},
		{"the operator allows all", CapabilityRequest{AllowCaps: all, Add: []string{"sys_admin"}, Drop: all}, "sys_admin", "sys_admin", ""},
		{"more than the operator allows", CapabilityRequest{Add: []string{"net_raw", "chown", "sys_admin"}, IsRoot: true}, "", "", "cap_add: driver does not allow the following capabilities: net_raw, sys_admin;"},
		{"the capability that protects the agent", CapabilityRequest{AllowCaps: all, Add: []string{"block_suspend"}}, "", "", "cap_add: driver does not allow the following capabilities: block_suspend;"},
		{"the operator names it", CapabilityRequest{AllowCaps: []string{"kill", "CAP_BLOCK_SUSPEND"}}, "", "", "allow_caps: the capability block_suspend cannot be granted"},
		{"an unknown name", CapabilityRequest{Add: []string{"root"}}, "", "", `cap_add: there is no capability "root"`},
		{"an unknown name to drop", CapabilityRequest{Drop: []string{"root"}}, "", "", `cap_drop: there is no capability "root"`},

		{"a namespace of the host", CapabilityRequest{SharesHostNamespace: true}, "net_bind_service", "net_bind_service", ""},
		{"of root", CapabilityRequest{SharesHostNamespace: true, IsRoot: true}, "net_bind_service", "net_bind_service", ""},
		{"with all that all may have", CapabilityRequest{SharesHostNamespace: true, IsRoot: true, AllowCaps: all, Add: all}, "net_bind_service", "net_bind_service", ""},
		{"with a default", CapabilityRequest{SharesHostNamespace: true, Add: []string{"kill"}}, "", "", "cap_add: driver does not allow the following capabilities: kill;"},
		{"with a name that only the task says", CapabilityRequest{SharesHostNamespace: true, AllowCaps: all, Add: []string{"sys_ptrace"}}, "", "", "cap_add: driver does not allow the following capabilities: sys_ptrace;"},
		{"with a name that only the operator says", CapabilityRequest{SharesHostNamespace: true, AllowCaps: []string{"sys_ptrace"}, Add: all}, "", "", ""},
		{"with a name that both say", CapabilityRequest{SharesHostNamespace: true, AllowCaps: []string{"sys_ptrace", "all"}, Add: []string{"CAP_SYS_PTRACE"}}, "net_bind_service, sys_ptrace", "net_bind_service, sys_ptrace", ""},
	} {
		got, err := test.request.ResolvePrivileges()
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

// TestResolveRandom makes requests of random names, and checks the promises that do not depend on the defaults.
func TestResolveRandom(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	spell := func(name string) string {
		return []string{name, "cap_" + name, strings.ToUpper(name), "CAP_" + strings.ToUpper(name)}[random.IntN(4)]
	}
	names := func() []string {
		list := []string{}
		for range random.IntN(4) {
			list = append(list, spell(append(capabilityNames[:], "all", "all", "all", "kill", "setuid", "sys_ptrace", "setuid", "kill")[random.IntN(len(capabilityNames)+8)]))
		}
		return list
	}
	has := func(list []string, name string) bool {
		return slices.ContainsFunc(list, func(n string) bool {
			return n == name || strings.EqualFold(n, name) || strings.EqualFold(n, "cap_"+name)
		})
	}
	granted := 0
	for range 20000 {
		r := CapabilityRequest{AllowCaps: names(), Add: names(), Drop: names(), IsRoot: random.IntN(2) > 0, SharesHostNamespace: random.IntN(2) > 0}
		if random.IntN(3) == 0 {
			r.AllowCaps = nil
		}
		got, err := r.ResolvePrivileges()
		if err != nil {
			continue
		}
		if got.Ambient&^got.Bounding != 0 {
			t.Fatalf("seed %d: %+v: ambient %s beyond %s", seed, r, got.Ambient, got.Bounding)
		}
		for n, name := range capabilityNames {
			if got.Bounding&(1<<n) == 0 {
				continue
			}
			byOperator, byTask := has(r.AllowCaps, name), has(r.Add, name)
			anyOperator, anyTask := byOperator || has(r.AllowCaps, "all"), byTask || has(r.Add, "all")
			ambient := got.Ambient&(1<<n) != 0
			switch {
			case name == "net_bind_service":
				continue
			case name == "block_suspend",
				r.SharesHostNamespace && !(byOperator && byTask),
				r.AllowCaps != nil && !anyOperator,
				r.AllowCaps == nil && (strings.HasPrefix(name, "set") || name == "fsetid" || name == "mknod" || strings.HasPrefix(name, "sys_") && name != "sys_chroot"),
				r.AllowCaps == nil && !r.IsRoot && name != "kill" && name != "audit_write",
				ambient && !anyTask:
				t.Fatalf("seed %d: %+v: bounding %s, ambient %s", seed, r, got.Bounding, got.Ambient)
			}
			granted++
		}
	}
	if granted < 1000 {
		t.Errorf("seed %d: only %d capabilities were granted: the requests are too bad", seed, granted)
	}
}
