package fingerprint

import (
	"math"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/descriptors"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// readTaskLimits sets the attributes that say how many descriptors, processes and pipes all tasks together can have. The
// scheduler places no more tasks than these suffice for.
func (p *prober) readTaskLimits() {
	var files, processes unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil || unix.Getrlimit(unix.RLIMIT_NPROC, &processes) != nil {
		return
	}
	root := os.Geteuid() == 0
	p.setAttributeUnlessUnlimited(descriptors.AttributeDescriptors, p.maxDescriptorsOfTasks(files.Cur))
	p.setAttributeUnlessUnlimited(descriptors.AttributeProcesses, p.maxProcessesOfTasks(processes.Cur, root))
	p.setAttributeUnlessUnlimited(descriptors.AttributePipes, p.maxPipesOfTasks(root))
}

// setAttributeUnlessUnlimited sets an attribute to a number of kernel objects, unless the number is unlimited: at least
// 2^63-1.
func (p *prober) setAttributeUnlessUnlimited(name string, n uint64) {
	if n < math.MaxInt64 {
		p.setAttributeIfPositive(name, int64(max(n, 1)))
	}
}

// readLimitOrMaxUint64 reads a limit from a kernel file. It returns math.MaxUint64 if the file is missing or has no number,
// such as "max".
func (p *prober) readLimitOrMaxUint64(file string) uint64 {
	if n, err := strconv.ParseUint(p.readTrimmedTextOrEmpty(file), 10, 64); err == nil {
		return n
	}
	return math.MaxUint64
}

// descriptorsPerTaskOnMachine is how many files all nomad-lite processes together have open for a task.
const descriptorsPerTaskOnMachine = 16

// maxDescriptorsOfTasks returns how many descriptors a process can have for tasks under the open file limit openFilesLimit,
// so that the machine's limit suffices too.
func (p *prober) maxDescriptorsOfTasks(openFilesLimit uint64) uint64 {
	onMachine := withoutReservedQuarter(p.readLimitOrMaxUint64("proc/sys/fs/file-max"))
	return min(descriptors.ForTasks(openFilesLimit), onMachine/descriptorsPerTaskOnMachine*descriptors.PerTask)
}

// maxProcessesOfTasks returns how many processes and threads tasks can have. userLimit is the agent user's limit.
func (p *prober) maxProcessesOfTasks(userLimit uint64, isRoot bool) uint64 {
	n := min(p.readLimitOrMaxUint64("proc/sys/kernel/pid_max"), p.readLimitOrMaxUint64("proc/sys/kernel/threads-max"))
	if !isRoot {
		n = min(n, userLimit) // the kernel does not apply RLIMIT_NPROC to root
	}
	for _, file := range p.pidsLimitFiles() {
		n = min(n, p.readLimitOrMaxUint64(file))
	}
	if n == math.MaxUint64 {
		return n
	}
	return withoutReservedQuarter(n)
}

// withoutReservedQuarter returns three quarters of a machine limit, and reserves one quarter for other programs. The present
// use cannot be subtracted instead, because it includes an earlier agent's tasks, which are not restored yet.
func withoutReservedQuarter(limit uint64) uint64 { return limit - limit/4 }

// pidsLimitFiles returns the files with the process limits for the cgroups that tasks are in. If an agent has a
// ParentCgroup, its tasks are below the root cgroup, and otherwise in the agent's cgroup.
func (p *prober) pidsLimitFiles() []string {
	files := []string{"sys/fs/cgroup/pids.max", "sys/fs/cgroup/pids/pids.max"}
	if p.host.ParentCgroup != "" {
		return files
	}
	own, err := osprocess.OwnCgroup()
	if err != nil {
		return files
	}
	for dir := path.Clean("/" + own); dir != "/"; dir = path.Dir(dir) {
		files = append(files, "sys/fs/cgroup"+dir+"/pids.max")
	}
	return files
}

const (
	pagesPerPipe    = 16 // pages in a new pipe's buffer
	pagesPerMinPipe = 2  // pages in a new pipe's buffer if the user has reached fs.pipe-user-pages-soft
	reservedPipes   = 64 // pipes that tasks do not get, because nomad-lite needs them
)

// maxPipesOfTasks returns how many pipes tasks can have under fs.pipe-user-pages-hard and -soft, which limit the memory
// pages in a user's pipes.
func (p *prober) maxPipesOfTasks(isRoot bool) uint64 {
	hard := p.readLimitOrMaxUint64("proc/sys/fs/pipe-user-pages-hard")
	if isRoot || hard == 0 || hard == math.MaxUint64 { // root has a capability that lifts the limit; 0 means no limit
		return math.MaxUint64
	}
	soft := p.readLimitOrMaxUint64("proc/sys/fs/pipe-user-pages-soft")
	if soft == 0 || soft > hard {
		soft = hard
	}
	pipes := soft/pagesPerPipe + (hard-soft)/pagesPerMinPipe
	return pipes - min(pipes, reservedPipes)
}
