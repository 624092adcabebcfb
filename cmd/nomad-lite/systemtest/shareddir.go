package systemtest

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/shareddir"
)

// SharedDirOrSkip returns the absolute path of a directory with samples of Nomad, which are not part of this
// repository. It skips the test if there is no such directory.
func SharedDirOrSkip(t testing.TB, names ...string) string {
	t.Helper()
	return shareddir.OrSkip(t, RepositoryDir(), names...)
}
