package confine

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// KeepCapabilities takes all other capabilities from the calling thread, which the caller
// has locked. Its files are still those of its user: root without capabilities opens what
// root owns, and nothing that is closed to root. A user who has none is given none.
func KeepCapabilities(keep ...uint) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets, kept [2]unix.CapUserData // 32 capabilities each
	err := unix.Capget(&header, &sets[0])
	for _, c := range keep {
		kept[c/32].Permitted |= 1 << (c % 32)
	}
	for i := range sets {
		kept[i].Permitted &= sets[i].Permitted
		kept[i].Effective = kept[i].Permitted
	}
	if err == nil {
		err = unix.Capset(&header, &kept[0])
	}
	if err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}
