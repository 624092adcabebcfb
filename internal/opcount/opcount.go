package opcount

import (
	"strconv"
	"strings"
	"sync/atomic"
)

// Kind is a kind of operation.
type Kind int

// The kinds of operations.
const (
	Fork    Kind = iota // a process is started
	Mount               // a system call makes, attaches, changes or removes a mount
	Netlink             // a request of netlink, or a transaction of nftables, is sent to the kernel; a repeated request counts once
	Cgroup              // a cgroup is made or removed, or a value is written to a file or an extended attribute of it
	Sync                // a write waits until its data is on disk
	Request             // the keeper or the log collector gets a request, and the process waits for the response

	kindCount
)

var kindNames = [kindCount]string{"fork", "mount", "netlink", "cgroup", "sync", "request"}

// String returns the name of the kind in metrics.
func (k Kind) String() string { return kindNames[k] }

// Kinds returns all kinds.
func Kinds() []Kind {
	all := make([]Kind, kindCount)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

// Counts has the number of operations of each kind.
type Counts [kindCount]uint64

var counters [kindCount]atomic.Uint64

// Count counts one operation. Operations that fail are counted too.
func Count(k Kind) { counters[k].Add(1) }

// Add counts the operations of another process that this process has started, and that cannot report its counts
// itself.
func Add(c Counts) {
	for k, n := range c {
		counters[k].Add(n)
	}
}

// Read returns the number of operations since the start of the process.
func Read() (c Counts) {
	for k := range counters {
		c[k] = counters[k].Load()
	}
	return c
}

// Max returns the larger count of each kind: the newer one of two results of Read in one process, which may arrive in
// another order.
func (c Counts) Max(other Counts) Counts {
	for k := range c {
		c[k] = max(c[k], other[k])
	}
	return c
}

// String returns the counts in the form that Parse reads: "fork=1 mount=0 netlink=0 cgroup=9 sync=0 request=0".
func (c Counts) String() string {
	var b strings.Builder
	for k, n := range c {
		if k > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(kindNames[k])
		b.WriteByte('=')
		b.WriteString(strconv.FormatUint(n, 10))
	}
	return b.String()
}

// Parse returns the counts in a text of String. It skips what it does not recognize, such as the kinds of another version
// of nomad-lite.
func Parse(text string) (c Counts) {
	for field := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(field, "=")
		n, err := strconv.ParseUint(value, 10, 64)
		for k := range kindNames {
			if err == nil && kindNames[k] == name {
				c[k] = n
			}
		}
	}
	return c
}
