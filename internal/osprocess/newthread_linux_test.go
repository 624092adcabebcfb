package osprocess

import (
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Goroutines are started on all threads, so that without the precaution of RunOnNewThread some would be on the main thread.
func TestNewThreadIsNotTheMainThread(t *testing.T) {
	for range 50 {
		var wg sync.WaitGroup
		for range 2 * runtime.GOMAXPROCS(0) {
			wg.Go(func() {
				err := RunOnNewThread(func() error {
					if unix.Gettid() == os.Getpid() {
						t.Error("f runs on the main thread")
					}
					return unix.EBADF
				})
				if err != unix.EBADF {
					t.Errorf("got %v, want the error of f", err)
				}
			})
		}
		wg.Wait()
	}
}
