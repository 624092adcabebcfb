package agentproof

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Path is the route of the proof. Its parameters are "key", a [KeyID], and "nonce", a nonce of [NewNonce].
const Path = "/v1/agent/lite-proof"

// ConnectionProof is the reply of the route.
type ConnectionProof struct {
	Proof string // hexadecimal
	// Agent and Client are the addresses in the proof, for a web page, which does not see its connections. Other clients
	// must use those of their own end.
	Agent, Client string
}

// Domains of the two MACs that have a token as their key, so that none is valid in the other's place.
const (
	keyIDDomain = "nomad-lite agent proof v1: key id"
	proofDomain = "nomad-lite agent proof v1: connection"
)

// KeyID returns the identifier of a token, from which the token cannot be computed.
func KeyID(token string) string { return mac(token, keyIDDomain) }

// NewNonce returns a nonce.
func NewNonce() string {
	var nonce [sha256.Size]byte
	rand.Read(nonce[:]) // never fails
	return hex.EncodeToString(nonce[:])
}

// isKeyIDOrNonce reports whether text has the form of a key identifier and of a nonce.
func isKeyIDOrNonce(text string) bool {
	_, err := hex.DecodeString(text)
	return err == nil && len(text) == hex.EncodedLen(sha256.Size)
}

// Prove returns the proof that a request asks for, with the addresses of its connection, which must be one over TCP: the addresses of
// others do not tell them apart. tokenOf returns the token with an identifier, or an unknown token if there is none.
func Prove(r *http.Request, tokenOf func(keyID string) string) (ConnectionProof, error) {
	query := r.URL.Query()
	keyID, nonce := query.Get("key"), query.Get("nonce")
	if !isKeyIDOrNonce(keyID) || !isKeyIDOrNonce(nonce) {
		return ConnectionProof{}, errors.New("key and nonce must have 64 hexadecimal digits each")
	}
	agent, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	if agent == nil || err != nil {
		return ConnectionProof{}, errors.New("the agent proves nothing over a unix socket, which the file system protects")
	}
	return newProof(tokenOf(keyID), nonce, agent.AddrPort(), client), nil
}

// newProof returns the proof for a connection, whose addresses are those of the agent and of the client.
func newProof(token, nonce string, agent, client netip.AddrPort) ConnectionProof {
	return ConnectionProof{Compute(token, nonce, agent, client), normalize(agent), normalize(client)}
}

// Compute returns the proof for a connection, whose addresses are those of the agent and of the client.
func Compute(token, nonce string, agent, client netip.AddrPort) string {
	return mac(token, proofDomain, nonce, normalize(agent), normalize(client))
}

// Verify reports whether proof is the proof of a token for a connection.
func Verify(proof, token, nonce string, agent, client netip.AddrPort) bool {
	return hmac.Equal([]byte(proof), []byte(Compute(token, nonce, agent, client)))
}

// normalize returns an address in the form that both ends of a connection see: an IPv6 socket sees an IPv4 peer as a
// mapped address, and a zone is a name of one machine.
func normalize(a netip.AddrPort) string {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port()).String()
}

// mac returns the MAC of parts, none of which contains a line feed.
func mac(token string, parts ...string) string {
	h := hmac.New(sha256.New, []byte(token))
	h.Write([]byte(strings.Join(parts, "\n"))) // never fails
	return hex.EncodeToString(h.Sum(nil))
}
