//go:build linux

package osprocess

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stat holds fields of /proc/<pid>/stat.
type Stat struct {
	State          byte // state of the first thread, as a letter; 'Z' means zombie
	PPID           int
	Executed       bool // the process has executed a program since its fork
	Session        int
	UserTime       uint64 // CPU time in clock ticks
	SystemTime     uint64 // CPU time in clock ticks
	Threads        int    // number of threads, including an exited first thread
	StartTime      uint64 // time since boot, in clock ticks
	RSS            uint64 // resident memory, in pages
	memory         uint64 // virtual memory, in bytes; 0 for a zombie and a kernel thread
	codeStart      uint64 // address of the program; 0 while the kernel executes it, which stores the environment before
	waitStatusWord int    // wait status word; valid only if Ended and exitStatusReadable return true
}

// Ended reports whether the process has ended: the process is a zombie, or the kernel is removing it. A process
// whose first thread is a zombie still runs as long as it has other threads: the first thread has exited
// alone (pthread_exit(3)), or another thread calls execve(2) at this moment.
func (s Stat) Ended() bool { return (s.State == 'Z' || s.State == 'X') && s.Threads <= 1 }

// ticksPerSecond is USER_HZ, the clock ticks of /proc, which is 100 on every Linux that Go runs on.
const ticksPerSecond = 100

// TicksToDuration converts clock ticks of /proc.
func TicksToDuration(n uint64) time.Duration { return time.Duration(n) * time.Second / ticksPerSecond }

// ReadStat reads the fields of the process that has this pid now. The error is
// os.ErrProcessDone if there is none.
func ReadStat(pid int) (Stat, error) {
	var buf [1024]byte
	b, err := ReadSmallFile("/proc/"+strconv.Itoa(pid)+"/stat", buf[:])
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return Stat{}, os.ErrProcessDone
		}
		return Stat{}, err
	}
	return parseStat(b)
}

// Numbers of fields of /proc/<pid>/stat. The name of the program is before firstFieldNumber.
const firstFieldNumber, stateField, ppidField, sessionField, flagsField, utimeField, stimeField, threadsField, starttimeField, vsizeField, rssField, codeStartField, exitCodeField = 3, 3, 4, 6, 9, 14, 15, 20, 22, 23, 24, 26, 52

const forkNoExec = 0x40 // PF_FORKNOEXEC of linux/sched.h, in the flags

// parseStat parses the line of /proc/<pid>/stat. The program name is in parentheses and may
// contain parentheses, so the name ends at the last closing parenthesis.
func parseStat(b []byte) (Stat, error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return Stat{}, errors.New("read process status: no name")
	}
	var array [exitCodeField - firstFieldNumber + 1][]byte
	fields := array[:0] // not bytes.Fields, because the status of each task is read regularly
	for field := range bytes.FieldsSeq(b[i+1:]) {
		if fields = append(fields, field); len(fields) == len(array) {
			break
		}
	}
	if len(fields) <= rssField-firstFieldNumber || len(fields[0]) != 1 {
		return Stat{}, errors.New("read process status: too few fields")
	}
	var err error
	signed := func(field int) int {
		n, e := strconv.Atoi(string(fields[field-firstFieldNumber]))
		err = cmp.Or(err, e)
		return n
	}
	unsigned := func(field int) uint64 {
		n, e := strconv.ParseUint(string(fields[field-firstFieldNumber]), 10, 64)
		err = cmp.Or(err, e)
		return n
	}
	st := Stat{
		State:      fields[stateField-firstFieldNumber][0],
		PPID:       signed(ppidField),
		Executed:   unsigned(flagsField)&forkNoExec == 0,
		Session:    signed(sessionField),
		UserTime:   unsigned(utimeField),
		SystemTime: unsigned(stimeField),
		Threads:    signed(threadsField),
		StartTime:  unsigned(starttimeField),
		memory:     unsigned(vsizeField),
		RSS:        unsigned(rssField),
	}
	if len(fields) > exitCodeField-firstFieldNumber {
		st.codeStart, st.waitStatusWord = unsigned(codeStartField), signed(exitCodeField)
	}
	if err != nil {
		return Stat{}, fmt.Errorf("read process status: %w", err)
	}
	return st, nil
}

// Children returns the pids of the children of a process, zombies included. With an error children can be missing: each error
// satisfies [IsResourceExhausted].
func Children(pid int) (pids []int, err error) {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.ReadDir(dir)
	if IsResourceExhausted(err) {
		return nil, err
	}
	for _, t := range tasks {
		b, err := os.ReadFile(dir + "/" + t.Name() + "/children")
		if errors.Is(err, os.ErrNotExist) {
			return scanChildren(pid) // the kernel has no CONFIG_PROC_CHILDREN, or the thread has just ended
		}
		if IsResourceExhausted(err) {
			return pids, err
		}
		for _, field := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids, nil
}

func scanChildren(parent int) (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	if IsResourceExhausted(err) {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		st, err := ReadStat(pid)
		if IsResourceExhausted(err) {
			return pids, err
		}
		if err == nil && st.PPID == parent {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
