package process

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// memoryLow is the file of cgroup version 2 with the reserved memory of a cgroup.
const memoryLow = "memory.low"

// updateParentReservations reserves as much memory for each cgroup above the task as for the cgroups in
// it: the kernel honours the reservation of a cgroup only within that of its parent.
func (g *cgroup) updateParentReservations() error {
	slice := filepath.Dir(g.path)
	for _, parent := range []string{slice, filepath.Dir(slice)} {
		sum, err := sumReservations(parent)
		if err != nil {
			return err
		}
		if err := writeExistingFile(filepath.Join(parent, memoryLow), strconv.FormatInt(sum, 10)); err != nil {
			return err
		}
	}
	return nil
}

// sumReservations returns the reserved memory of the cgroups in a cgroup, in bytes.
func sumReservations(parent string) (sum int64, err error) {
	children, err := os.ReadDir(parent)
	if err != nil {
		return 0, err
	}
	for _, child := range children {
		// A child without the file has no memory controller, or was just removed. The value "max" is not
		// that of a task of this package.
		text, _ := os.ReadFile(filepath.Join(parent, child.Name(), memoryLow))
		bytes, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		sum += bytes
	}
	return sum, nil
}

// releaseReservation takes the reservation of the cgroup from those above it.
func (g *cgroup) releaseReservation() error {
	if reserved, ok := g.readNumber(memoryLow); !ok || reserved == 0 {
		return nil
	}
	if err := writeExistingFile(filepath.Join(g.path, memoryLow), "0"); err != nil {
		return err
	}
	return g.updateParentReservations()
}
