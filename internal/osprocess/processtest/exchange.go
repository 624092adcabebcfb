package processtest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// ExchangePaths exchanges a directory and a link again and again until the test ends, as another process that can write
// to their directory can.
func ExchangePaths(t testing.TB, directory, link string) {
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
			if err := unix.Renameat2(unix.AT_FDCWD, directory, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
}
