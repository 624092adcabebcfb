package framing

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// Role is the kind of a process at one end of a connection.
type Role string

const (
	RoleAgent     Role = "Agent"
	RolePlugin    Role = "Plugin"
	RoleKeeper    Role = "Keeper"
	RoleCollector Role = "Collector"
)

// Hello is the first message in each direction of a connection. Its form never changes: a field is
// neither renamed nor removed, and keeps its type and its meaning. A process ignores fields that it
// does not know.
type Hello struct {
	Version int          // version of the messages that follow the hello messages
	Build   string       // build of the sender's program, for messages to users
	Role    Role         // role of the sender
	Process osprocess.ID `json:",omitzero"` // process of the sender, if the sender is a keeper or a log collector
}

// NewHello returns the hello message of this process.
func NewHello(role Role, version int) Hello {
	return Hello{Version: version, Build: buildVersion(), Role: role}
}

// buildInfo returns what debug.ReadBuildInfo parses, with 16 bytes around it. The package runtime/debug is initialized too late
// for the keeper and the log collector, which take their process over before most packages are initialized.
//
//go:linkname buildInfo runtime/debug.modinfo
func buildInfo() string

var buildVersion = sync.OnceValue(func() string { return parseBuildVersion(buildInfo()) })

// parseBuildVersion returns the version of the main module of a program and the source revision, as the go command has
// recorded them.
func parseBuildVersion(info string) string {
	version, revision := "(devel)", ""
	for line := range strings.Lines(info) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if key == "mod" {
			_, value, _ = strings.Cut(value, "\t") // the path of the module
			value, _, _ = strings.Cut(value, "\t") // the checksum follows the version
			version = cmp.Or(value, version)
		} else if after, found := strings.CutPrefix(value, "vcs.revision="); found && key == "build" {
			revision = " " + after
		}
	}
	return version + revision
}

// helloTimeout is the maximum time that ExchangeHello waits for the first message of the peer.
const helloTimeout = 10 * time.Second

// ExchangeHello sends the first message of a client on a new connection, and returns the first
// message of the server. It returns when ctx ends, or after ten seconds. After an error the caller
// must close the connection.
func (c *Conn) ExchangeHello(ctx context.Context, own Hello) (peer Hello, err error) {
	if err := c.Send(own); err != nil {
		return Hello{}, fmt.Errorf("send hello: %w", err)
	}
	if err := c.socket.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return Hello{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.socket.SetReadDeadline(time.Unix(1, 0)) }) // SetReadDeadline fails only for a closed socket
	fds, err := c.Receive(&peer)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return Hello{}, fmt.Errorf("receive hello: %w", err)
	}
	if len(fds) > 0 {
		CloseAll(fds)
		return Hello{}, fmt.Errorf("receive hello: %d descriptors came with it", len(fds))
	}
	return peer, c.socket.SetReadDeadline(time.Time{})
}
