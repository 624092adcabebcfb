package programs

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stepClockForDuration is the program "step-clock BY DURATION". It steps the clock of the machine by BY, and after
// DURATION steps the clock back, even if its parent exits first: it ignores SIGINT, SIGTERM and SIGHUP.
func stepClockForDuration() {
	by, byErr := time.ParseDuration(os.Args[1])
	duration, durationErr := time.ParseDuration(os.Args[2])
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := errors.Join(byErr, durationErr)
	if err == nil {
		err = addToSystemClock(by)
	}
	if err == nil {
		time.Sleep(duration) // uses the monotonic clock, which does not step
		err = addToSystemClock(-by)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func addToSystemClock(by time.Duration) error {
	now := unix.NsecToTimespec(time.Now().Add(by).UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	return nil
}
