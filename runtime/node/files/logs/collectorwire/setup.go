package collectorwire

import "time"

// CommandName is the last argument of the command line of a collector process.
const CommandName = "log-collector"

// SetupEnvVar is the variable in which a client passes the setup to the collector process that it starts.
const SetupEnvVar = "NOMAD_LITE_COLLECTOR_SETUP"

// Files of a collector process in the data directory, except the socket, which is in the socket directory of
// helperdir.Dir.
const (
	SocketName   = "collector.sock"
	LockFileName = "collector.lock" // this file is locked while an agent starts a collector process, or a collector process exits
	PIDFileName  = "collector.pid"  // this file is locked by the collector process until it exits, and has the osprocess.ID of the process
	LogFileName  = "collector.log"  // stderr of the collector process; empty unless the process has crashed
)

// Setup is the configuration that a collector process reads at its start.
type Setup struct {
	Dir           string
	Ephemeral     bool
	LingerTimeout time.Duration
}
