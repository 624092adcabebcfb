package connlimit

import (
	"cmp"
	"slices"
)

// Class is a group of clients that share a number of connections.
type Class uint8

// These are the classes. A connection starts as Unauthenticated, or, depending on its socket and its peer, as Task or
// Operator. Its requests can move it to any other class than Unauthenticated.
const (
	Unauthenticated Class = iota // a client over TCP that has sent no token yet
	Task                         // a task that uses its socket, or has sent its token
	Guest                        // a client with the read-only token, or of an agent that requires no token
	Operator                     // a client with all rights, or whose user is the agent's
)

// Identity is the client that a connection belongs to. Name is the text of a taskapi.Addr for a task, and otherwise
// the user or the address of the peer.
type Identity struct {
	Class Class
	Name  string
}

// classLimits are the limits of each class. The numbers of connections of all classes are the total of a Limiter.
var classLimits = [...]struct {
	eighths   int // number of connections, in eighths of the total
	perClient int // connections of one client, unless Config.PerClient is set; 0 means no limit
}{
	Unauthenticated: {eighths: 1},
	Task:            {eighths: 3, perClient: 100},
	Guest:           {eighths: 2},
	Operator:        {eighths: 2},
}

// class has the connections of the clients of a class. Its methods require Limiter.mu.
type class struct {
	maxConns, perClient int // perClient is 0 if clients have no limit
	connCount           int
	clients             map[string][]*Conn // connections in the order in which the class got them, by Identity.Name
	headerBytes         map[*Conn]int      // bytes of the incomplete request of each connection that has not authenticated
	headerTotal         int                // sum of headerBytes
}

// add adds a connection of a client. If the class is full, add first removes and returns a connection of the client
// with most connections: the oldest idle one, or the newest if none is idle. add returns false, and adds
// nothing, if that client is the one whose connection is added, and none of its connections is idle.
func (s *class) add(c *Conn, name string) (evicted *Conn, ok bool) {
	if s.connCount >= s.maxConns {
		if evicted = s.nextVictim(name); evicted == nil {
			return nil, false
		}
		s.remove(evicted)
	}
	s.clients[name] = append(s.clients[name], c)
	s.connCount++
	return evicted, true
}

// nextVictim returns the connection that add removes, nil if there is none. Of clients with equally many connections
// it selects the one whose first connection is the oldest.
func (s *class) nextVictim(newcomer string) *Conn {
	var client string
	var most int // connections of client, with the one that is added
	for name, conns := range s.clients {
		n := len(conns)
		if name == newcomer {
			n++
		}
		if n > most || n == most && conns[0].acceptedAt.Before(s.clients[client][0].acceptedAt) {
			client, most = name, n
		}
	}
	conns := s.clients[client]
	if i := slices.IndexFunc(conns, (*Conn).isIdleLocked); i >= 0 {
		return conns[i]
	}
	if client == newcomer {
		return nil
	}
	return conns[len(conns)-1]
}

// remove removes a connection of the class.
func (s *class) remove(c *Conn) {
	name := c.identity.Name
	if s.clients[name] = slices.DeleteFunc(s.clients[name], func(other *Conn) bool { return other == c }); len(s.clients[name]) == 0 {
		delete(s.clients, name)
	}
	s.connCount--
	s.endHeader(c)
}

// largestSender returns the connection with most bytes of an incomplete request, of the client whose requests have most
// bytes together.
func (s *class) largestSender() (most *Conn) {
	sums := make(map[string]int)
	for c, n := range s.headerBytes {
		sums[c.identity.Name] += n
	}
	for c, n := range s.headerBytes {
		if most == nil || cmp.Or(cmp.Compare(sums[c.identity.Name], sums[most.identity.Name]), cmp.Compare(n, s.headerBytes[most])) > 0 {
			most = c
		}
	}
	return most
}

// endHeader subtracts the bytes of a connection.
func (s *class) endHeader(c *Conn) {
	s.headerTotal -= s.headerBytes[c]
	delete(s.headerBytes, c)
}

// hasShare reports whether a connection, which can already be one of the client, is within the limit of
// connections of a client.
func (s *class) hasShare(c *Conn, name string) bool {
	if s.perClient == 0 {
		return true
	}
	earlier := slices.Index(s.clients[name], c)
	if earlier < 0 {
		earlier = len(s.clients[name])
	}
	return earlier < s.perClient
}
