package network

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// Networks in use are repaired regularly.
func TestNetworksAreRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d, s := newTestManager()
		if _, err := m.Create(t.Context(), state.AllocNetwork{AllocID: "a", Mode: "bridge"}, ignoreOutage); err != nil {
			t.Fatal(err)
		}
		runManager(t, m, 2*repairInterval+time.Second)
		if err := m.Destroy(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		runManager(t, m, 2*repairInterval)
		checkCalls(t, d, s, "namespace", "connect /run/netns/a", "repair 1", "repair 1", "disconnect", "remove")
	})
}

// If the host cannot repair a namespace, it is connected again, until that succeeds. Its tasks get the network if it has another
// address.
func TestLostNetworkIsConnectedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d, s := newTestManager()
		var reasons []string
		replace := func(n *state.AllocNetwork, reason string) {
			reasons = append(reasons, reason)
			if want := (driver.HostsConfig{Hostname: "web", Address: "172.26.64.7"}); n.AllocID != "a" || n.Status.Address != want.Address || *n.Isolation.Hosts != want {
				t.Errorf("%+v, %+v", n.Status, n.Isolation.Hosts)
			}
		}
		h := m.host.(*fakeHost)
		if _, err := m.Create(t.Context(), state.AllocNetwork{AllocID: "a", Mode: "cni/x", Hostname: "web"}, ignoreOutage); err != nil {
			t.Fatal(err)
		}
		damage := func(address string) {
			n := s.Network("a")
			n.Status.Address, n.Isolation.Hosts.Address = address, address
			h.connectErrs = []error{errors.New("the plugin has exited")}
			repairs := 0
			h.repair = func() []Damage {
				if repairs++; repairs > 2 { // the second attempt to connect the namespace has succeeded
					return nil
				}
				return []Damage{{AllocID: "a", Reason: "its interface was removed"}}
			}
			d.calls = nil
			runReplacingManager(t, m, 3*repairInterval+time.Second, replace)
		}
		damage("172.26.64.7")
		if len(reasons) > 0 {
			t.Errorf("tasks get a network that has not changed: %q", reasons)
		}
		damage("172.26.64.5")
		if len(reasons) != 1 || reasons[0] != "its interface was removed" {
			t.Errorf("reasons %q", reasons)
		}
		if err := m.Destroy(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		checkCalls(t, d, s, "repair 1", "disconnect", "connect /run/netns/a", "repair 1", "disconnect", "connect /run/netns/a", "repair 1", "disconnect", "remove")
	})
}

// Destroy waits for a repair, which could otherwise connect the namespace again after Destroy.
func TestDestroyWaitsForRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d, s := newTestManager()
		h := m.host.(*fakeHost)
		if _, err := m.Create(t.Context(), state.AllocNetwork{AllocID: "a", Mode: "bridge"}, ignoreOutage); err != nil {
			t.Fatal(err)
		}
		h.repair = func() []Damage {
			time.Sleep(time.Second)
			h.call("repaired")
			return nil
		}
		go m.repair(t.Context(), nil)
		synctest.Wait()
		timeout, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := m.Destroy(timeout, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := m.Destroy(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		m.repair(t.Context(), nil) // does nothing, because no network is in use
		checkCalls(t, d, s, "namespace", "connect /run/netns/a", "repair 1", "repaired", "disconnect", "remove")
	})
}
