package conditions

import (
	"crypto/x509"
	"time"
)

// Facts are the input for the table of kinds. Each field's zero value, except Now, means no problem. It is large because each
// table row reads other facts.
type Facts struct {
	Now          time.Time
	DataDir      string
	PID          int      // the agent's process ID
	Unit         string   // the agent's systemd service; "" if it has none
	AgentCommand []string // the agent's command line, quoted for a shell
	AgentDir     string   // the agent's working directory

	NodeNotReady   bool
	NoKnownServers bool // the agent is a cluster node that knows no server

	SpaceErr      error     // the data directory's disk has too little free space
	Disk          Use       // bytes on the data directory's disk, if SpaceErr is set
	ForeignFiles  []string  // names in the data directory not made by any agent, if SpaceErr or InodesErr is set
	InodesErr     error     // the data directory's disk has too few free inodes
	StateWriteErr error     // the last write of the state file has failed
	DamageCount   int       // parts of the state that this agent could not read and no kept file has
	DamagedFiles  []string  // damaged state files kept by agents, oldest first
	DamagedAt     time.Time // when the newest DamagedFiles entry was found
	OutputLossErr error     // a task stream that cannot be written, and the reason

	Plugins []Plugin // plugins that should run
	Drivers []Driver // unhealthy drivers

	Descriptors Use // the agent's open files, or tasks' descriptors, whichever is nearer its limit
	Processes   Use // processes and threads under the nearest limit
	Memory      Use // the machine's memory in bytes

	KeeperReplacedAt time.Time // when the agent replaced a dead keeper
	ClockSteppedAt   time.Time // when the machine's clock was set, or the machine resumed from a suspend

	Certificates []Certificate // the agent's certificates

	UnknownAllocs []UnknownAlloc

	EvaluationsPaused, JobsRejected bool // settings of the scheduler configuration
}

// UnknownAlloc is an allocation with running tasks but without a record in the state.
type UnknownAlloc struct {
	ID, JobID  string // JobID is "" if unknown
	IsInstance bool   // the job is known and no driver can adopt the allocation, which counts as a job instance
}

// Plugin is a plugin without a process.
type Plugin struct {
	Name string
	Path string // "" for a builtin
	Err  error  // why it does not run
	At   time.Time
}

// Driver is a driver that cannot start tasks.
type Driver struct{ Name, Reason string }

// Use is the used amount of a limited resource. Limit 0 means no limit.
type Use struct {
	Used, Limit uint64
	Of          string // file with the limit, or a description of it
}

// isAbove reports whether more than percent of the limit is used.
func (u Use) isAbove(percent uint64) bool { return u.Limit > 0 && u.Used*100 > u.Limit*percent }

// Certificate is a certificate presented by the agent.
type Certificate struct {
	File, KeyFile string
	Leaf          *x509.Certificate
}
