package osprocess

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// RunOnNewThread calls f on a thread that ends when f has returned, so that f can change the thread for good: its
// namespaces, its capabilities, its system calls. It blocks until f has returned. Goroutines that f starts have other
// threads; processes that f starts inherit what f has changed.
//
// The thread is never the main thread, which ends only with the process, and whose mounts and network /proc/self shows.
func RunOnNewThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread stays locked, so that it ends with the goroutine
		if unix.Gettid() == os.Getpid() {
			// While this goroutine is locked to the main thread, the next one has another thread.
			defer runtime.UnlockOSThread()
			done <- RunOnNewThread(f)
			return
		}
		done <- f()
	}()
	return <-done
}
