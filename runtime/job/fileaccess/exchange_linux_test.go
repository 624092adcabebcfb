package fileaccess

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHelperExchange is the second process for TestExchangedLinks.
func TestHelperExchange(t *testing.T) {
	dir := os.Getenv("EXCHANGE_IN")
	if dir == "" {
		t.Skip("is a process of TestExchangedLinks")
	}
	parent := os.Getppid()
	for os.Getppid() == parent {
		for range 100 {
			unix.Renameat2(unix.AT_FDCWD, dir+"/dir", unix.AT_FDCWD, dir+"/link", unix.RENAME_EXCHANGE)
			unix.Renameat2(unix.AT_FDCWD, dir+"/key", unix.AT_FDCWD, dir+"/keylink", unix.RENAME_EXCHANGE)
			unix.Renameat2(unix.AT_FDCWD, dir+"/../pub/a", unix.AT_FDCWD, dir+"/../pub/b", unix.RENAME_EXCHANGE)
		}
	}
}
