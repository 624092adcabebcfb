package processtest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// ExchangePaths exchanges a directory and a link again and again until the test ends, as another process that can write
// to their directory can.
func ExchangePaths(t testing.TB, directory, link string) {
	t.Helper()
	Repeat(t, func() error {
		return unix.Renameat2(unix.AT_FDCWD, directory, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
	})
}

// Repeat calls f again and again in another goroutine until the test ends. An error ends the calls, and fails the test.
// Cleanup functions that the test has registered before are called after the last call of f.
func Repeat(t testing.TB, f func() error) {
	t.Helper()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := f(); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
}
