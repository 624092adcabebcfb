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

// readTaskLimits reads how many descriptors, processes and pipes tasks can have. The scheduler places only tasks for
// which there are enough.
func (p *prober) readTaskLimits() {
	var files, processes unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil || unix.Getrlimit(unix.RLIMIT_NPROC, &processes) != nil {
		return
	}
	root := os.Geteuid() == 0
	p.setLimitAttribute(descriptors.AttributeDescriptors, p.descriptorsForTasks(files.Cur))
	p.setLimitAttribute(descriptors.AttributeProcesses, p.processesForTasks(processes.Cur, root))
	p.setLimitAttribute(descriptors.AttributePipes, p.pipesForTasks(root))
}

// setLimitAttribute sets an attribute to a number of objects, unless the number is not limited.
func (p *prober) setLimitAttribute(name string, n uint64) {
	if n < math.MaxInt64 {
		p.setNumericAttribute(name, int64(max(n, 1)))
	}
}

// readLimit reads a number from a file of the kernel. A missing or unlimited number is the largest one.
func (p *prober) readLimit(file string) uint64 {
	if n, err := strconv.ParseUint(p.readText(file), 10, 64); err == nil {
		return n
	}
	return math.MaxUint64
}

// descriptorsPerTaskOnMachine is the number of descriptors that all processes of nomad-lite together have for a task.
const descriptorsPerTaskOnMachine = 16

// descriptorsForTasks returns the number of descriptors that tasks can have in one process with a limit of open files.
func (p *prober) descriptorsForTasks(limit uint64) uint64 {
	onMachine := withoutReserve(p.readLimit("proc/sys/fs/file-max"))
	return min(descriptors.ForTasks(limit), onMachine/descriptorsPerTaskOnMachine*descriptors.PerTask)
}

// processesForTasks returns the number of processes and threads that tasks can have.
func (p *prober) processesForTasks(limit uint64, root bool) uint64 {
	n := min(p.readLimit("proc/sys/kernel/pid_max"), p.readLimit("proc/sys/kernel/threads-max"))
	if !root {
		n = min(n, limit) // the kernel does not apply the limit to root
	}
	for _, file := range p.pidsLimitFiles() {
		n = min(n, p.readLimit(file))
	}
	if n == math.MaxUint64 {
		return n
	}
	return withoutReserve(n)
}

// withoutReserve returns three quarters of a limit of the machine. The rest is for all other programs: the tasks that an earlier
// agent has started are not known yet, so that what is in use now cannot be subtracted.
func withoutReserve(limit uint64) uint64 { return limit - limit/4 }

// pidsLimitFiles returns the files with the limits of cgroups that apply to tasks. Tasks of root have cgroups below the root.
// Tasks of other users are in the cgroup of the agent.
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
	pagesPerPipe    = 16 // pages of the buffer of a pipe
	pagesPerMinPipe = 2  // pages of the buffer of a pipe beyond fs.pipe-user-pages-soft
	reservedPipes   = 64 // pipes of nomad-lite
)

// pipesForTasks returns the number of pipes that tasks can have, with the limit of pages of all pipes of a user.
func (p *prober) pipesForTasks(root bool) uint64 {
	hard := p.readLimit("proc/sys/fs/pipe-user-pages-hard")
	if root || hard == 0 || hard == math.MaxUint64 { // root has a capability that lifts the limit; 0 means no limit
		return math.MaxUint64
	}
	soft := p.readLimit("proc/sys/fs/pipe-user-pages-soft")
	if soft == 0 || soft > hard {
		soft = hard
	}
	pipes := soft/pagesPerPipe + (hard-soft)/pagesPerMinPipe
	return pipes - min(pipes, reservedPipes)
}
