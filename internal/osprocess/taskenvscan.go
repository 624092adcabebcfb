//go:build linux

package osprocess

import (
	"errors"
	"io/fs"
	"os"
	"sync"
)

// taskEnvScan is the result of one read of the environments of all processes.
type taskEnvScan struct {
	processesByTask map[TaskEnvID][]ID // processes that have the variables of a task in their environment
	err             error              // if set, processes can be missing

	done chan struct{} // closed after processes and err were set
}

// taskEnvScanner makes scans that concurrent callers share, because a scan reads several files for each process of the
// machine: the cleanup of a hundred tasks at the same time needs one scan, or two.
type taskEnvScanner struct {
	readTaskEnvs func() (map[TaskEnvID][]ID, error)

	scanRunning chan struct{} // capacity 1; contains a value during a scan

	mu       sync.Mutex
	nextScan *taskEnvScan // scan that has not started; nil if there is none
}

var taskEnvScans = newTaskEnvScanner(readTaskEnvs)

func newTaskEnvScanner(read func() (map[TaskEnvID][]ID, error)) *taskEnvScanner {
	return &taskEnvScanner{readTaskEnvs: read, scanRunning: make(chan struct{}, 1)}
}

// scan returns the result of a scan that has started after the call, because an earlier scan can have missed
// a process that the caller must find. Several callers can receive the same result, and must not change it.
func (s *taskEnvScanner) scan() *taskEnvScan {
	s.mu.Lock()
	scan := s.nextScan
	joined := scan != nil
	if !joined {
		scan = &taskEnvScan{done: make(chan struct{})}
		s.nextScan = scan
	}
	s.mu.Unlock()
	if joined {
		<-scan.done
		return scan
	}

	s.scanRunning <- struct{}{}
	defer func() { <-s.scanRunning }()
	s.mu.Lock()
	s.nextScan = nil
	s.mu.Unlock()
	defer close(scan.done)
	scan.processesByTask, scan.err = s.readTaskEnvs()
	return scan
}

// isOwnParent reports whether a process is this one or its parent: a plugin and the keeper, or another host, that has started it.
func isOwnParent(pid int) bool {
	return pid == os.Getpid() || pid == os.Getppid() && pid != 1
}

// readTaskEnvs returns the processes that have the variables of a task in their environment, except the calling
// process and those whose environment another account can have chosen. With an error processes can be missing.
func readTaskEnvs() (map[TaskEnvID][]ID, error) {
	processes := make(map[TaskEnvID][]ID)
	err := forEachEnv(func(p ID, env []byte) {
		if id, ok := parseTaskEnvID(env); ok && isEnvTrusted(p.PID, isOwnParent) {
			processes[id] = append(processes[id], p)
		}
	})
	return processes, err
}

// forEachEnv calls visit for each process with its environment, except for the calling process and for processes whose
// environment this user may not read. With an error processes can be missing.
func forEachEnv(visit func(p ID, env []byte)) error {
	return forEachProcess(func(p ID, _ Stat) error {
		env, err := ReadEnv(p.PID)
		if err == nil {
			visit(p, env)
		} else if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return err
	})
}
