package connlimit

import (
	"cmp"
	"slices"
)

// ClientClass is a group of clients with a shared number of connections.
type ClientClass uint8

// A new connection is in the class Unauthenticated or, depending on its socket and its peer, in Task or Operator. An
// authenticated request can move the connection to each class except Unauthenticated.
const (
	Unauthenticated ClientClass = iota // a client over TCP that has not sent a token
	Task                               // a task that uses its socket, or has sent its token
	Guest                              // a client with the read-only token, or any client if the agent requires no token
	Operator                           // a client with all rights, or one running as the agent's user
)

// ClientIdentity is a connection's client. Name is a taskapi.Addr's text for a task, and otherwise the peer's user or address.
type ClientIdentity struct {
	Class ClientClass
	Name  string
}

// classLimits are each class's limits. The shares of all classes add up to eight eighths.
var classLimits = [...]struct {
	eighths   int // class share in Config.MaxConns, in eighths
	perClient int // maximum connections per client if Config.MaxConnsPerClient is 0; 0 means no limit
}{
	Unauthenticated: {eighths: 1},
	Task:            {eighths: 3, perClient: 100},
	Guest:           {eighths: 2},
	Operator:        {eighths: 2},
}

// classConns has the connections of a class's clients. Its methods require Limiter.mu.
type classConns struct {
	maxConns, maxConnsPerClient int // maxConnsPerClient is 0 if clients have no limit
	connCount                   int
	connsByClient               map[string][]*Conn // connections in the order in which the class got them, by ClientIdentity.Name
	headerBytesByConn           map[*Conn]int      // bytes of each unauthenticated connection's incomplete request
	totalHeaderBytes            int                // sum of headerBytesByConn
}

// addConn adds a client's connection. If the class is full, addConn first removes and returns a connection of the client with
// most connections: the oldest idle connection, or the newest if none is idle. If the new connection's client is the one with
// most connections, and none of its connections is idle, addConn returns false and changes nothing.
func (co *classConns) addConn(c *Conn, clientName string) (evicted *Conn, ok bool) {
	if co.connCount >= co.maxConns {
		if evicted = co.connToEvict(clientName); evicted == nil {
			return nil, false
		}
		co.removeConn(evicted)
	}
	co.connsByClient[clientName] = append(co.connsByClient[clientName], c)
	co.connCount++
	return evicted, true
}

// connToEvict returns the connection removed by addConn for a new connection of clientOfNewConn, or nil if there is none. If
// several clients have most connections, it selects the client with the oldest first connection.
func (co *classConns) connToEvict(clientOfNewConn string) *Conn {
	var client string
	var most int // number of client's connections, including the new connection
	for name, conns := range co.connsByClient {
		n := len(conns)
		if name == clientOfNewConn {
			n++
		}
		if n > most || n == most && conns[0].acceptedAt.Before(co.connsByClient[client][0].acceptedAt) {
			client, most = name, n
		}
	}
	conns := co.connsByClient[client]
	if i := slices.IndexFunc(conns, (*Conn).isIdleLocked); i >= 0 {
		return conns[i]
	}
	if client == clientOfNewConn {
		return nil
	}
	return conns[len(conns)-1]
}

// removeConn removes a connection from the class.
func (co *classConns) removeConn(c *Conn) {
	name := c.countedClient.Name
	if co.connsByClient[name] = slices.DeleteFunc(co.connsByClient[name], func(other *Conn) bool { return other == c }); len(co.connsByClient[name]) == 0 {
		delete(co.connsByClient, name)
	}
	co.connCount--
	co.forgetHeaderBytes(c)
}

// connToEvictForHeaderBytes selects the client with most bytes in incomplete requests, and returns its connection with most
// bytes.
func (co *classConns) connToEvictForHeaderBytes() (most *Conn) {
	sums := make(map[string]int)
	for c, n := range co.headerBytesByConn {
		sums[c.countedClient.Name] += n
	}
	for c, n := range co.headerBytesByConn {
		if most == nil || cmp.Or(cmp.Compare(sums[c.countedClient.Name], sums[most.countedClient.Name]), cmp.Compare(n, co.headerBytesByConn[most])) > 0 {
			most = c
		}
	}
	return most
}

// forgetHeaderBytes stops counting the bytes in a connection's incomplete request.
func (co *classConns) forgetHeaderBytes(c *Conn) {
	co.totalHeaderBytes -= co.headerBytesByConn[c]
	delete(co.headerBytesByConn, c)
}

// isWithinClientLimit reports whether a connection is within its client's connection limit. The class may already have counted
// the connection for the client.
func (co *classConns) isWithinClientLimit(c *Conn, clientName string) bool {
	if co.maxConnsPerClient == 0 {
		return true
	}
	earlier := slices.Index(co.connsByClient[clientName], c)
	if earlier < 0 {
		earlier = len(co.connsByClient[clientName])
	}
	return earlier < co.maxConnsPerClient
}
