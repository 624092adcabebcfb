package clock

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// WatchSteps calls onStep each time when the wall clock was set or the machine has resumed from a suspend,
// until ctx ends. onStep must not block. An error means that the kernel cannot report such steps.
func WatchSteps(ctx context.Context, onStep func()) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("create timerfd: %w", err)
	}
	timer := os.NewFile(uintptr(fd), "timerfd")
	defer timer.Close()
	defer context.AfterFunc(ctx, func() { timer.Close() })()

	var expiryCount [8]byte
	for {
		if err := armTimer(timer); err != nil {
			return errUnlessDone(ctx, err)
		}
		// When the clock is set, a read of the timer fails with ECANCELED.
		if _, err := timer.Read(expiryCount[:]); err != nil && !errors.Is(err, unix.ECANCELED) {
			return errUnlessDone(ctx, err)
		}
		onStep()
	}
}

// farTimerExpiry is the expiry time of the timer: the largest number of seconds that the kernel accepts
// without an overflow of its nanoseconds.
const farTimerExpiry int64 = 9_223_372_036

func armTimer(timer *os.File) error {
	conn, err := timer.SyscallConn()
	if err != nil {
		return err
	}
	spec := &unix.ItimerSpec{Value: unix.Timespec{Sec: farTimerExpiry}}
	var set error
	if err := conn.Control(func(fd uintptr) {
		set = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, spec, nil)
	}); err != nil {
		return err
	}
	if set != nil && !errors.Is(set, unix.ECANCELED) {
		return fmt.Errorf("set timerfd: %w", set)
	}
	return nil
}

// errUnlessDone returns nil if ctx has ended, because err is then a consequence of that, and err otherwise.
func errUnlessDone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
