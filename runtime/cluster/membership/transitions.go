package membership

import "time"

// action is a Member's next call.
type action int

const (
	register  action = iota // Node.Register
	heartbeat               // Node.UpdateStatus
)

// credential is a call's token.
type credential int

const (
	introduction credential = iota // the configured introduction token, or none: the servers do not know the node
	identity                       // identity signed by the servers, or the secret if they have signed none
	secret                         // the node's secret, although there is an identity
)

// step is the next call and its token.
type step struct {
	action     action
	credential credential
}

// outcome is a call's result.
type outcome int

const (
	accepted       outcome = iota
	denied                 // the servers reject the token
	nodeUnknown            // the servers do not have the node
	secretMismatch         // the servers have the node with another machine's secret
	failed                 // no server has answered, or none could execute the call
)

// pause is the time before the next step.
type pause int

const (
	noPause       pause = iota
	untilNextBeat       // the time the servers allow until the next heartbeat
	shortPause          // a second or two
	retryPause          // grows while calls fail; see Member.retryDelay
	longPause           // until an operator can have changed something
)

// transition is what follows a step.
type transition struct {
	next  step
	pause pause
	// notice is logged; empty means nothing.
	notice string
	// forget means the node counts as never registered.
	forget bool
}

const (
	introductionDenied = "the servers reject the introduction token of this node: a token that was made for this node_pool and name, or none, is needed; the log of the leader has the reason"
	credentialsDenied  = "the servers reject the credentials of this node, so it registers as a new one: the keys of the cluster are lost, or this data directory is from another cluster"
	otherSecret        = "the servers have this node's id with another secret: the data directory was copied, or the file with the secret was lost. Purge the node (nomad node purge), or start with an empty data directory"
	purged             = "the servers no longer have this node, so it registers again"
)

var (
	registerUnknown = step{register, introduction}
	registerKnown   = step{register, identity}
	beat            = step{heartbeat, identity}
	beatBySecret    = step{heartbeat, secret}
)

// transitions is a Member's state machine: the next step after each outcome of each step.
var transitions = map[step]map[outcome]transition{
	registerUnknown: {
		accepted:       {next: beat},
		denied:         {next: registerUnknown, pause: longPause, notice: introductionDenied},
		nodeUnknown:    {next: registerUnknown, pause: retryPause},
		secretMismatch: {next: registerUnknown, pause: longPause, notice: otherSecret},
		failed:         {next: registerUnknown, pause: retryPause},
	},
	registerKnown: {
		accepted:       {next: beat},
		denied:         {next: registerUnknown, pause: shortPause, notice: credentialsDenied, forget: true},
		nodeUnknown:    {next: registerKnown, pause: retryPause},
		secretMismatch: {next: registerKnown, pause: longPause, notice: otherSecret},
		failed:         {next: registerKnown, pause: retryPause},
	},
	beat: {
		accepted:       {next: beat, pause: untilNextBeat},
		denied:         {next: beatBySecret},
		nodeUnknown:    {next: registerKnown, notice: purged},
		secretMismatch: {next: registerKnown, pause: longPause, notice: otherSecret},
		failed:         {next: beat, pause: retryPause},
	},
	beatBySecret: {
		accepted:       {next: beat, pause: untilNextBeat},
		denied:         {next: registerKnown, pause: shortPause},
		nodeUnknown:    {next: registerKnown, notice: purged},
		secretMismatch: {next: registerKnown, pause: longPause, notice: otherSecret},
		failed:         {next: beat, pause: retryPause},
	},
}

const (
	shortDelay    = time.Second
	longDelay     = 30 * time.Second
	maxRetryDelay = 30 * time.Second
	// heartbeatGrace is how long servers wait by default after the next heartbeat's due time.
	heartbeatGrace = 10 * time.Second
)
