package conditions

import "time"

// Severity says how much of the agent's work a condition prevents.
type Severity string

const (
	// Error means that the agent cannot do a part of its work, such as the start of tasks: the part is unhealthy.
	Error Severity = "error"
	// Warning means that the agent does its work, and that the operator should act before that changes, or should know what
	// happened.
	Warning Severity = "warning"
)

// Part is the part of an agent that a condition belongs to, in Nomad's terms.
type Part string

const (
	Client Part = "client" // runs tasks
	Server Part = "server" // stores the state and serves the API
)

// Condition is something that is wrong with the agent or its machine.
type Condition struct {
	Kind     string // name of a row of the table of kinds, such as "DiskFull"
	Severity Severity
	Part     Part   `json:"-"`
	Object   string `json:",omitempty"` // which of several objects, such as the name of a plugin; can be empty
	Summary  string // sentences about what is wrong and its effect; without a full stop at the end
	Remedy   string // sentences about what helps; without a full stop at the end
	// Commands are what to type, in this order. A comment in a command starts with "  # ".
	Commands []string `json:",omitempty"`
	Since    time.Time
}

// key identifies a condition while it exists.
type key struct{ kind, object string }

func (c Condition) key() key { return key{c.Kind, c.Object} }

// Report is the result of a look at the agent and its machine.
type Report struct {
	LookedAt   time.Time
	Conditions []Condition // errors first, then in the order of the table of kinds; never nil
}
