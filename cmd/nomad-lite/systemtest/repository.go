package systemtest

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// TestConfigEnvVar is the environment variable with the path of the configuration file that the agents of scripts and
// of TestAgent read first.
const TestConfigEnvVar = "NOMAD_LITE_TEST_ROOMY"

// FreePortConfigFile is the name of a configuration file, in the same directory, that makes an agent listen on a free
// port.
const FreePortConfigFile = "free_port.hcl"

// testConfigPath returns the path of the configuration file for TestConfigEnvVar.
func testConfigPath() string {
	return filepath.Join(RepositoryDir(), "cmd/nomad-lite/systemtest/testdata/roomy.hcl")
}

// RepositoryDir returns the root directory of the checkout. The tests run below it.
var RepositoryDir = sync.OnceValue(func() string {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, statErr := os.Stat(filepath.Join(dir, "go.mod")); statErr == nil {
			return dir
		}
		if dir == "/" {
			err = errors.New("no directory above has a go.mod")
		}
	}
	panic("find the repository: " + err.Error())
})

// WaitTimeout is the timeout of every wait except those for web pages. Only an operation that hangs takes this long.
const WaitTimeout = 2 * time.Minute
