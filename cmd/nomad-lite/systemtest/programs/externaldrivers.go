package programs

import (
	execdriver "github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// serveRawExecAsExternalDriver serves raw_exec as a third-party driver: a file in the plugin directory with
// the driver name external_exec.
func serveRawExecAsExternalDriver() { sdk.ServeDriver(&externalRawExecDriver{}) }

type externalRawExecDriver struct{ rawexec.Driver }

func (e *externalRawExecDriver) Info() sdk.DriverInfo {
	info := e.Driver.Info()
	info.Name = "external_exec"
	return info
}

// serveExecAsExternalDriver serves exec as a third-party driver, which can mount volumes.
func serveExecAsExternalDriver() { sdk.ServeDriver(&execdriver.Driver{}) }
