package conditions

import (
	"crypto/x509"
	"time"
)

// Facts are what the table of kinds reads. The zero value of each field except Now means that nothing is wrong. It is large because each
// row of the table reads other facts.
type Facts struct {
	Now          time.Time
	DataDir      string
	PID          int      // of the agent
	Unit         string   // service of systemd that runs the agent; "" if it has none
	AgentCommand []string // command line of the agent, quoted for a shell
	AgentDir     string   // working directory of the agent

	NodeNotReady   bool
	NoKnownServers bool // the agent is a node of a cluster, and knows no server

	SpaceErr      error     // the disk of the data directory has too little free space
	Disk          Use       // bytes of the disk of the data directory, if SpaceErr is set
	ForeignFiles  []string  // names in the data directory that no agent has made, if SpaceErr or InodesErr is set
	InodesErr     error     // the disk of the data directory has too few free inodes
	StateWriteErr error     // the last write of the state file has failed
	DamageCount   int       // parts of the state that this agent could not read, and that are in no kept file
	DamagedFiles  []string  // damaged state files that agents have kept, oldest first
	DamagedAt     time.Time // when the newest of DamagedFiles was found
	OutputLossErr error     // a stream of a task whose output cannot be written, and the reason

	Plugins []Plugin // plugins that should run
	Drivers []Driver // drivers that are not healthy

	Descriptors Use // open files of the helper process that has the most, or that tasks can have
	Processes   Use // processes and threads under the limit that is nearest
	Memory      Use // bytes of the machine's memory

	KeeperReplacedAt time.Time // when the agent has replaced a keeper that had ended
	ClockSteppedAt   time.Time // when the clock of the machine was set, or the machine has resumed from a suspend

	Certificates []Certificate // certificates of the agent

	UnknownAllocs []UnknownAlloc
}

// UnknownAlloc is an allocation that the state has lost, and whose tasks run.
type UnknownAlloc struct {
	ID, JobID  string // JobID is "" if it is not known
	IsInstance bool   // the job is known and no driver can adopt the allocation, which counts as an instance of the job
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

// Use is how much of a limited resource is in use. A Limit of 0 means no limit.
type Use struct {
	Used, Limit uint64
	Of          string // file with the limit, or a description of it
}

// isAbove reports whether more than percent of the limit is in use.
func (u Use) isAbove(percent uint64) bool { return u.Limit > 0 && u.Used*100 > u.Limit*percent }

// Certificate is a certificate that the agent presents.
type Certificate struct {
	File, KeyFile string
	Leaf          *x509.Certificate
}
