package bridge

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// Without nf_conntrack_netlink there is no entry to delete. The kernel answers in the same way for each missing subsystem.
func TestMissingConntrackIsEmpty(t *testing.T) {
	const unknownSubsystem = 200
	if entries, err := dumpNetfilterSubsystem(unknownSubsystem); len(entries) > 0 || err != nil {
		t.Errorf("%d entries, %v", len(entries), err)
	}
	if _, err := dumpNetfilterSubsystem(netlink.ConntrackTable); err != nil {
		t.Error(err)
	}
}
