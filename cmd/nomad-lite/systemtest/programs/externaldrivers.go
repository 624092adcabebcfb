package programs

import (
	execdriver "github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// serveExternalExecDriver serves raw_exec as a third-party driver: a file in the plugin directory with
// the driver name external_exec.
func serveExternalExecDriver() { sdk.ServeDriver(&externalExecPlugin{}) }

type externalExecPlugin struct{ rawexec.Driver }

func (e *externalExecPlugin) Info() sdk.DriverInfo {
	info := e.Driver.Info()
	info.Name = "external_exec"
	return info
}

// serveChrootDriver serves exec as a third-party driver, which can mount volumes.
func serveChrootDriver() { sdk.ServeDriver(&execdriver.Driver{}) }
