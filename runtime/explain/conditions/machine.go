package conditions

import (
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenFiles returns a process's number of open files, and its limit. It returns zeros if they cannot be read.
func OpenFiles(pid int) Use {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	var limit unix.Rlimit
	if unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit) != nil {
		return Use{}
	}
	info, err := os.Stat(dir)
	if err != nil {
		return Use{}
	}
	used := uint64(info.Size()) // since Linux 6.2
	if used == 0 {
		names, err := os.ReadDir(dir)
		if err != nil {
			return Use{}
		}
		used = uint64(len(names))
	}
	return Use{Used: used, Limit: limit.Cur}
}

// MachineProcesses returns the number of processes and threads under the nearest limit, set by the machine or this process's
// cgroups.
func MachineProcesses() Use { return nearestProcessLimit(os.ReadFile) }

func nearestProcessLimit(readFile func(string) ([]byte, error)) Use {
	readNumber := func(file string) uint64 {
		text, err := readFile(file)
		if err != nil {
			return 0
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64) // "max" is not a number, and means no limit
		if err != nil {
			return 0
		}
		return n
	}
	var nearest Use
	consider := func(used uint64, limitFile string) {
		u := Use{used, readNumber(limitFile), limitFile}
		if u.Limit > 0 && (nearest.Limit == 0 || u.Used*nearest.Limit > nearest.Used*u.Limit) {
			nearest = u
		}
	}
	if load, err := readFile("/proc/loadavg"); err == nil { // 0.20 0.18 0.12 1/80 11206
		if f := strings.Fields(string(load)); len(f) > 3 {
			_, total, _ := strings.Cut(f[3], "/")
			if threads, err := strconv.ParseUint(total, 10, 64); err == nil {
				consider(threads, "/proc/sys/kernel/pid_max")
				consider(threads, "/proc/sys/kernel/threads-max")
			}
		}
	}
	own, err := readFile("/proc/self/cgroup")
	if err != nil {
		return nearest
	}
	for line := range strings.Lines(string(own)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // 9:pids:/a/b, or 0::/a/b
		if len(f) != 3 {
			continue
		}
		root := "/sys/fs/cgroup"
		switch f[1] {
		case "":
		case "pids":
			root += "/pids"
		default:
			continue
		}
		for dir := path.Clean("/" + f[2]); dir != "/"; dir = path.Dir(dir) {
			consider(readNumber(root+dir+"/pids.current"), root+dir+"/pids.max")
		}
	}
	return nearest
}
