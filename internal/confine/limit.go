package confine

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// LimitProcess limits the process that calls it, for good: it can allocate this number of bytes of memory and use this
// processor time in addition to what it has now, and can write no file. A process that exceeds a limit exits.
func LimitProcess(memory uint64, cpu time.Duration) error {
	allocated, err := dataSegmentBytes()
	if err != nil {
		return err
	}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return fmt.Errorf("read the processor time: %w", err)
	}
	used := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	for resource, limit := range map[int]uint64{
		unix.RLIMIT_DATA:  allocated + memory,
		unix.RLIMIT_CPU:   uint64((used+cpu)/time.Second) + 1,
		unix.RLIMIT_FSIZE: 0,
		unix.RLIMIT_CORE:  0,
	} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limit resource %d: %w", resource, err)
		}
	}
	return nil
}

// dataSegmentBytes returns the size of the writable private memory of this process.
func dataSegmentBytes() (uint64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "VmData:")
	var kilobytes uint64
	if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
		return 0, fmt.Errorf("read VmData in /proc/self/status: %w", err)
	}
	return kilobytes << 10, nil
}
