package process

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// memoryLow is the name of the file with the memory reservation of a cgroup v2.
const memoryLow = "memory.low"

// updateParentMemoryReservations sets the memory reservation of each of the two cgroups above the task's cgroup to the sum of
// the reservations of its children, because the kernel limits the reservation of a cgroup to that of its parent.
func (c *cgroup) updateParentMemoryReservations() error {
	slice := filepath.Dir(c.path)
	for _, parent := range []string{slice, filepath.Dir(slice)} {
		sum, err := sumMemoryReservations(parent)
		if err != nil {
			return err
		}
		if err := writeExistingFile(filepath.Join(parent, memoryLow), strconv.FormatInt(sum, 10)); err != nil {
			return err
		}
	}
	return nil
}

// sumMemoryReservations returns the sum of the memory reservations of the children of a cgroup, in bytes.
func sumMemoryReservations(parent string) (sum int64, err error) {
	children, err := os.ReadDir(parent)
	if err != nil {
		return 0, err
	}
	for _, child := range children {
		// Errors are ignored: a child without the file has no memory controller, or was just removed, and
		// no task of this package has the value "max".
		text, _ := os.ReadFile(filepath.Join(parent, child.Name(), memoryLow))
		bytes, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		sum += bytes
	}
	return sum, nil
}

// releaseMemoryReservation sets the memory reservation of the cgroup to 0, and subtracts it from the cgroups above.
func (c *cgroup) releaseMemoryReservation() error {
	if reserved, ok := c.readNumber(memoryLow); !ok || reserved == 0 {
		return nil
	}
	if err := writeExistingFile(filepath.Join(c.path, memoryLow), "0"); err != nil {
		return err
	}
	return c.updateParentMemoryReservations()
}
