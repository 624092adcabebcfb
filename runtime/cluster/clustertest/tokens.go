package clustertest

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/crypto/blake2b"
)

// signingKey is the key of all clusters of a test binary, because a new one takes a second on a slow machine. Clusters
// differ in the id of the key, so that a token of one is not valid in another.
var signingKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

// tokenSigner signs and verifies tokens.
type tokenSigner struct {
	key    *rsa.PrivateKey
	keyID  string
	signer jose.Signer
}

// claims are the claims of all kinds of tokens.
type claims struct {
	Subject   string `json:"sub"`
	Audience  any    `json:"aud"` // a text or a list of texts
	IssuedAt  int64  `json:"iat"`
	NotBefore int64  `json:"nbf"`
	Expiry    int64  `json:"exp,omitempty"` // zero means never
	ID        string `json:"jti"`

	NodeID         string `json:"nomad_node_id,omitempty"`
	NodePool       string `json:"nomad_node_pool,omitempty"`
	NodeClass      string `json:"nomad_node_class,omitempty"`
	NodeDatacenter string `json:"nomad_node_datacenter,omitempty"`
	NodeName       string `json:"nomad_node_name,omitempty"`

	Namespace    string `json:"nomad_namespace,omitempty"`
	JobID        string `json:"nomad_job_id,omitempty"`
	AllocationID string `json:"nomad_allocation_id,omitempty"`
	Task         string `json:"nomad_task,omitempty"`
	Service      string `json:"nomad_service,omitempty"`
}

func newTokenSigner(t testing.TB) *tokenSigner {
	t.Helper()
	key, err := signingKey()
	if err != nil {
		t.Fatal(err)
	}
	s := &tokenSigner{key: key, keyID: newID()}
	options := (&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", s.keyID)
	if s.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, options); err != nil {
		t.Fatal(err)
	}
	return s
}

// sign returns the token of claims that are issued now and are valid for ttl; zero means for ever.
func (s *tokenSigner) sign(cl claims, now time.Time, ttl time.Duration) (string, error) {
	cl.ID, cl.IssuedAt, cl.NotBefore = newID(), now.Unix(), now.Unix()
	if cl.Audience == nil {
		cl.Audience = "nomadproject.io"
	}
	if ttl > 0 {
		cl.Expiry = now.Add(ttl).Unix()
	}
	return jwt.Signed(s.signer).Claims(cl).Serialize()
}

// verify returns the claims of a token of this cluster, which can have expired.
func (s *tokenSigner) verify(token string) (claims, error) {
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		return claims{}, fmt.Errorf("failed to parse signed token: %w", err)
	}
	if id := parsed.Headers[0].KeyID; id != s.keyID {
		return claims{}, fmt.Errorf("failed to find key %s", id)
	}
	var cl claims
	err = parsed.Claims(&s.key.PublicKey, &cl)
	return cl, err
}

// IntroductionToken returns a token with which a node of the pool can register for the first time. An empty name means
// that the node may have any name. The token is valid for ttl.
func (c *Cluster) IntroductionToken(pool, name string, ttl time.Duration) string {
	c.t.Helper()
	cl := claims{Subject: fmt.Sprintf("node-introduction:%s:%s:%s:default", c.config.Region, pool, name), NodePool: pool, NodeName: name}
	token, err := c.signer.sign(cl, c.clock.Now(), ttl)
	if err != nil {
		c.t.Fatal(err)
	}
	return token
}

// MigrateToken returns the token with which a node may fetch the directory of the allocation with the id from the node
// that has nodeSecret.
func MigrateToken(allocID, nodeSecret string) (string, error) {
	hash, err := blake2b.New512([]byte(nodeSecret))
	if err != nil {
		return "", fmt.Errorf("make the token for allocation %s: %w", allocID, err)
	}
	hash.Write([]byte(allocID))
	return base64.URLEncoding.EncodeToString(hash.Sum(nil)), nil
}

// callerKind is what a token proves.
type callerKind int

const (
	anonymous      callerKind = iota // no token
	invalidToken                     // a token that the cluster does not know
	nodeCaller                       // a node, by its identity or its secret
	expiredNode                      // a node, by an identity that has expired
	taskCaller                       // a task of an allocation that has not ended
	introducedNode                   // an introduction token
	userCaller                       // a token of a user
)

// caller is the sender of a call.
type caller struct {
	kind     callerKind
	nodeID   string
	bySecret bool // a node that has sent its secret
	claims   claims
	token    *tokenEntry
	err      error // of invalidToken: why
}

// isNode reports whether the caller is any node.
func (cl *caller) isNode() bool { return cl.kind == nodeCaller }

// callerLocked returns the caller with a token.
func (c *Cluster) callerLocked(token string) caller {
	if token == "" {
		return caller{kind: anonymous}
	}
	if entry, known := c.tokens[token]; known {
		return caller{kind: userCaller, token: entry}
	}
	for id, n := range c.nodes {
		if n.SecretID == token {
			return caller{kind: nodeCaller, nodeID: id, bySecret: true}
		}
	}
	if len(token) == 36 {
		return caller{kind: invalidToken, err: errPermissionDenied}
	}
	cl, err := c.signer.verify(token)
	if err != nil {
		return caller{kind: invalidToken, err: err}
	}
	expired := cl.Expiry != 0 && cl.Expiry <= c.clock.Now().Unix()
	switch {
	case cl.NodeID != "" && expired:
		return caller{kind: expiredNode, nodeID: cl.NodeID, claims: cl}
	case expired:
		return caller{kind: invalidToken, err: errPermissionDenied}
	case cl.NodeID != "":
		return caller{kind: nodeCaller, nodeID: cl.NodeID, claims: cl}
	case cl.AllocationID != "":
		if a, known := c.allocs[cl.AllocationID]; !known || clientTerminal(a.ClientStatus) {
			return caller{kind: invalidToken, err: errPermissionDenied}
		}
		return caller{kind: taskCaller, claims: cl}
	default:
		return caller{kind: introducedNode, claims: cl}
	}
}
