package conditions

import "time"

// Severity says how far a condition prevents the agent's work.
type Severity string

const (
	// Error means that the agent cannot do part of its work, such as starting tasks: the part is unhealthy.
	Error Severity = "error"
	// Warning means that the agent does its work, but the operator should act before this changes, or should know what happened.
	Warning Severity = "warning"
)

// Part is the agent part that a condition belongs to, in Nomad's terms.
type Part string

const (
	Client Part = "client" // runs tasks
	Server Part = "server" // stores the state and serves the API
)

// Condition is a problem with the agent or its machine.
type Condition struct {
	Kind     string // row name in the table of kinds, such as "DiskFull"
	Severity Severity
	Part     Part   `json:"-"`
	Object   string `json:",omitempty"` // which of several objects, such as a plugin name; can be empty
	Summary  string // sentences about the problem and its effect; without a full stop at the end
	Remedy   string // sentences about the remedy; without a full stop at the end
	// Commands are the commands to type, in this order. A comment in a command starts with "  # ".
	Commands []string `json:",omitempty"`
	Since    time.Time
}

// key identifies a condition while it exists.
type key struct{ kind, object string }

func (c Condition) key() key { return key{c.Kind, c.Object} }

// Report is the result from a look at the agent and its machine.
type Report struct {
	LookedAt   time.Time
	Conditions []Condition // errors first, then in the order of kinds; never nil
}
