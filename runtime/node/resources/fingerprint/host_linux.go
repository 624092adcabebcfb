package fingerprint

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
)

const cgroupRoot = "/sys/fs/cgroup"

func uname() (release, machine string) {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "", ""
	}
	return unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:])
}

// landlockVersion returns the Landlock version, for example "v7", or "" if the kernel lacks it.
func landlockVersion() string {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return ""
	}
	return "v" + strconv.Itoa(int(version))
}

// taskSignalNames returns the names of the signals that tasks can get.
func taskSignalNames() []string {
	names := []string{"SIGIOT"} // SIGABRT alias
	for n := unix.Signal(1); n < 32; n++ {
		if name := unix.SignalName(n); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// hashMachineID returns a hash of the machine id in UUID form. The machine id itself must stay secret.
func hashMachineID(machineID string) string {
	if machineID == "" {
		return ""
	}
	h := sha256.Sum256([]byte("nomad-lite\n" + machineID))
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// cpuAffinity returns the cores on which this process can run; nil if unknown.
func cpuAffinity() *unix.CPUSet {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	return &set
}

func totalMemoryBytes() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// cgroupVersion returns the host's version of cgroups with controllers, or 0. A hybrid host, which also mounts
// version 2 without controllers, has version 1.
func cgroupVersion() int {
	fsType := func(path string) int64 {
		var st unix.Statfs_t
		if unix.Statfs(path, &st) != nil {
			return 0
		}
		return int64(st.Type)
	}
	switch fsType(cgroupRoot) {
	case unix.CGROUP2_SUPER_MAGIC:
		return 2
	case unix.TMPFS_MAGIC:
		if fsType(cgroupRoot+"/memory") == unix.CGROUP_SUPER_MAGIC || fsType(cgroupRoot+"/freezer") == unix.CGROUP_SUPER_MAGIC {
			return 1
		}
	}
	return 0
}

// readDataDirStorage reads the file system size for the data directory, or for the nearest existing parent directory.
func (p *prober) readDataDirStorage() {
	dir := filepath.Clean(p.options.DataDir)
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	var st unix.Statfs_t
	for unix.Statfs(dir, &st) != nil {
		if dir == "/" {
			p.addDegradation("the size of the storage is unknown: disk is not limited by what the machine has")
			return
		}
		dir = filepath.Dir(dir)
	}
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	block := uint64(st.Bsize)
	if st.Frsize > 0 {
		block = uint64(st.Frsize)
	}
	p.setAttributeIfPositive("unique.storage.bytestotal", int64(st.Blocks*block))
	p.setAttributeIfPositive("unique.storage.bytesfree", int64(st.Bavail*block))
	p.host.DataDirFileSystemMB = int(st.Blocks * block >> 20)
	if st.Blocks > 0 && st.Bavail == 0 {
		p.addDegradation(fmt.Sprintf("no space left on the file system of %s: nothing new can be stored or started, and output of tasks is lost; remove files from it, or enlarge it", dir))
	}
	p.setAttributeUnlessEmpty("unique.storage.volume", deviceOfPath(p.readTrimmedTextOrEmpty("proc/self/mountinfo"), dir))
}

// deviceOfPath returns the device of a path's file system. mountinfo is the content of /proc/<pid>/mountinfo.
func deviceOfPath(mountinfo, path string) string {
	var bestMount hoststats.Mount
	for _, m := range hoststats.ParseMounts(mountinfo) {
		inside := m.Point == "/" || path == m.Point || strings.HasPrefix(path, m.Point+"/")
		if inside && len(m.Point) >= len(bestMount.Point) { // a later mount covers an earlier one
			bestMount = m
		}
	}
	return bestMount.Device
}
