package agentdial

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"runtime"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/agentproof"
	"github.com/nomad-lite/nomad-lite/internal/hostport"
	"github.com/nomad-lite/nomad-lite/internal/wait"
)

const (
	checkTimeout  = 15 * time.Second // the agent's own timeout for the headers of a request, for loaded machines
	maxReplyBytes = 64 << 10
)

// Dialer dials an agent for plain HTTP. It does not check connections to addresses of other machines.
type Dialer struct {
	// Token is the token that the requests have; it may be empty.
	Token string
	// AddressIsGiven means that the user has named the address. Without it, only the proof counts.
	AddressIsGiven bool
	// AllowUnverified disables the check.
	AllowUnverified bool
	// Dial opens a connection.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// UnverifiedError is the error for a listener that may not be the agent. The listener has received at most a request for a
// proof.
type UnverifiedError struct {
	Listener       netip.AddrPort
	AddressIsGiven bool
	HasToken       bool
	OwnerIsTrusted bool   // the listener's user is root or the caller
	owner          string // description of the process and its user
	cause          error  // error of the connection; may be nil
}

func (e *UnverifiedError) Error() string {
	text := fmt.Sprintf("listener %s, %s, did not prove that it knows the token: nothing else was sent to it", e.Listener, e.owner)
	if !e.HasToken {
		text = fmt.Sprintf("listener %s, %s, is unverified, because there is no token that it could know: nothing was sent to it", e.Listener, e.owner)
	}
	if e.cause != nil {
		text += fmt.Sprintf(" (%v)", e.cause)
	}
	return text
}

func (e *UnverifiedError) Unwrap() error { return e.cause }

// DialContext opens a connection, on which at most a request for a proof was sent. It returns an *UnverifiedError if the listener
// may not have the requests of this client.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.Dial(ctx, network, address)
	if err != nil || d.AllowUnverified {
		return conn, err
	}
	remote, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || !remote.IP.IsLoopback() {
		return conn, nil
	}
	checked, err := d.check(ctx, conn)
	if err != nil || checked != conn {
		conn.Close()
	}
	return checked, err
}

// check returns the connection, or a new one to the same address, after the check. It returns nil with an error.
func (d *Dialer) check(ctx context.Context, conn net.Conn) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTimeout, os.ErrDeadlineExceeded)
	defer cancel()
	isReusable := true
	if d.Token != "" {
		proven, reusable, err := requestProof(ctx, conn, d.Token)
		if err != nil {
			return nil, d.newUnverifiedError(conn, err)
		}
		if proven {
			return conn, nil
		}
		_, isOpen := ownerOfPeer(conn)
		isReusable = reusable && isOpen
	}
	if !d.AddressIsGiven {
		return nil, d.newUnverifiedError(conn, nil)
	}
	if isReusable {
		if err := d.checkOwner(ctx, conn); err != nil {
			return nil, err
		}
		return conn, nil
	}
	again, err := d.Dial(ctx, "tcp", conn.RemoteAddr().String())
	if err != nil {
		return nil, err
	}
	if err := d.checkOwner(ctx, again); err != nil {
		again.Close()
		return nil, err
	}
	return again, nil
}

// requestProof requests the proof over the connection. isReusable reports that the connection can have further requests.
func requestProof(ctx context.Context, conn net.Conn, token string) (proven, isReusable bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // fails only if the connection is closed
	defer func() {
		if !stop() {
			err = context.Cause(ctx)
		}
	}()
	agent, client := ends(conn)
	nonce := agentproof.NewNonce()
	query := url.Values{"key": {agentproof.KeyID(token)}, "nonce": {nonce}}
	request, err := http.NewRequest(http.MethodGet, "http://"+agent.String()+agentproof.Path+"?"+query.Encode(), nil)
	if err != nil {
		return false, false, err
	}
	request.Header.Set("Accept-Encoding", "identity")
	if err := request.Write(conn); err != nil {
		return false, false, err
	}
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxReplyBytes)), request)
	if err != nil {
		return false, false, err
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return false, false, err
	}
	var reply agentproof.ConnectionProof
	proven = response.StatusCode == http.StatusOK && json.Unmarshal(body, &reply) == nil && agentproof.Verify(reply.Proof, token, nonce, agent, client)
	isReusable = !response.Close && response.ProtoAtLeast(1, 1) && response.StatusCode >= 200
	if proven && !isReusable {
		return false, false, io.ErrUnexpectedEOF // the agent shuts down
	}
	return proven, isReusable, nil
}

// ends returns the addresses of a TCP connection to an agent.
func ends(conn net.Conn) (agent, client netip.AddrPort) {
	agentAddr, _ := conn.RemoteAddr().(*net.TCPAddr)
	clientAddr, _ := conn.LocalAddr().(*net.TCPAddr)
	return agentAddr.AddrPort(), clientAddr.AddrPort() // the zero address if conn is another connection, which is not checked
}

// ownerOfPeer returns the process that has accepted a connection. It finds none before, and after that process has closed it.
func ownerOfPeer(conn net.Conn) (hostport.SocketOwner, bool) {
	return hostport.OwnerOfConnected(ends(conn))
}

// checkOwner returns an error unless root or the caller has accepted the connection. It blocks until a process has.
func (d *Dialer) checkOwner(ctx context.Context, conn net.Conn) error {
	timeout := checkTimeout
	if runtime.GOOS != "linux" {
		timeout = 0 // there is no /proc/net/tcp
	}
	err := wait.WhileError(ctx, fs.ErrNotExist, timeout, func() error {
		owner, found := ownerOfPeer(conn)
		switch {
		case !found:
			return fs.ErrNotExist
		case !isTrusted(owner):
			return d.newUnverifiedError(conn, nil)
		}
		return nil
	})
	if err == fs.ErrNotExist {
		return d.newUnverifiedError(conn, nil)
	}
	return err
}

func isTrusted(owner hostport.SocketOwner) bool { return owner.UID == 0 || owner.UID == os.Geteuid() }

func (d *Dialer) newUnverifiedError(conn net.Conn, cause error) error {
	agent, _ := ends(conn)
	e := &UnverifiedError{
		Listener: netip.AddrPortFrom(agent.Addr().Unmap(), agent.Port()), AddressIsGiven: d.AddressIsGiven, HasToken: d.Token != "",
		owner: "whose process is not visible", cause: cause,
	}
	owner, found := ownerOfPeer(conn)
	if !found {
		owner, found = hostport.OwnerOfListener(agent)
	}
	if found {
		e.owner, e.OwnerIsTrusted = owner.String(), isTrusted(owner)
	}
	return e
}
