package collectorwire

import "time"

// CommandName is the last argument on a collector process's command line.
const CommandName = "log-collector"

// SetupEnvVar is the variable in which a client passes the setup to its collector process.
const SetupEnvVar = "NOMAD_LITE_COLLECTOR_SETUP"

// A collector process's files in the data directory, except the socket, which is in helperdir.Dir's socket
// directory.
const (
	SocketName   = "collector.sock"
	LockFileName = "collector.lock" // this file is locked while an agent starts a collector process, or a collector process exits
	PIDFileName  = "collector.pid"  // locked by the collector process until it exits; has the process's osprocess.ID
	LogFileName  = "collector.log"  // the collector process's stderr; empty unless the process has crashed
)

// Setup is a collector process's configuration, read at its start.
type Setup struct {
	Dir           string
	Ephemeral     bool
	LingerTimeout time.Duration
}
