package identity

import (
	"context"
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

const testAllocID = "9a30b60a-07ff-f6ce-ec36-533c48a52b97"

// testIssuer is an Issuer with a clock set by the test.
type testIssuer struct {
	*Issuer
	now time.Time
}

func newTestIssuer(t testing.TB) *testIssuer {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{
		StateFilePath: filepath.Join(t.TempDir(), "state.db"), TemporaryKeys: true, Logger: hclog.NewNullLogger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	i := &testIssuer{now: time.Date(2026, 11, 22, 12, 0, 0, 500, time.UTC)}
	i.Issuer = NewIssuer(Config{Store: s, Region: "global", IssuerURL: "https://nomad.example", Now: func() time.Time { return i.now }})
	i.putAlloc(t, testAlloc())
	return i
}

func testAlloc() *api.Allocation {
	group := "web"
	return &api.Allocation{
		ID: testAllocID, Namespace: "apps", JobID: "shop", TaskGroup: group, ClientStatus: api.AllocClientStatusRunning,
		Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: &group, Tasks: []*api.Task{{Name: "server"}}}}},
	}
}

func (i *testIssuer) putAlloc(t testing.TB, a *api.Allocation) {
	t.Helper()
	_, err := i.Store.Update(context.Background(), func(tx *store.Txn) error {
		tx.PutScheduledAllocation(a)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (i *testIssuer) issue(t testing.TB, id *api.WorkloadIdentity) *state.IdentityToken {
	t.Helper()
	token, err := i.IssueToken(context.Background(), NewWorkload(testAlloc(), "server"), id)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

var defaultIdentity = &api.WorkloadIdentity{Name: "default", Audience: []string{"nomadproject.io"}}

func TestClaims(t *testing.T) {
	i := newTestIssuer(t)
	iat := float64(i.now.Unix())
	claims := func(change map[string]any) map[string]any {
		c := map[string]any{
			"sub": "global:apps:shop:web:server:default", "aud": "nomadproject.io", "iss": "https://nomad.example", "iat": iat, "nbf": iat,
			"nomad_namespace": "apps", "nomad_job_id": "shop", "nomad_allocation_id": testAllocID, "nomad_task": "server",
		}
		for name, value := range change {
			c[name] = value
		}
		return c
	}
	parent := "nightly"
	child := testAlloc()
	child.JobID, child.Job.ParentID = "nightly/periodic-1", &parent
	for _, tc := range []struct {
		name  string
		alloc *api.Allocation
		id    *api.WorkloadIdentity
		want  map[string]any
	}{
		{"the default identity", testAlloc(), defaultIdentity, claims(nil)},
		{"a named one with a TTL", testAlloc(), &api.WorkloadIdentity{Name: "vault", Audience: []string{"vault.io"}, TTL: time.Hour}, claims(map[string]any{
			"sub": "global:apps:shop:web:server:vault", "aud": "vault.io", "exp": iat + 3600,
		})},
		{"two audiences", testAlloc(), &api.WorkloadIdentity{Name: "x", Audience: []string{"a", "b"}}, claims(map[string]any{
			"sub": "global:apps:shop:web:server:x", "aud": []any{"a", "b"},
		})},
		{"a child of a periodic job has the id of its parent", child, defaultIdentity, claims(map[string]any{
			"sub": "global:apps:nightly:web:server:default", "nomad_job_id": "nightly",
		})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			token, err := i.IssueToken(t.Context(), NewWorkload(tc.alloc, "server"), tc.id)
			if err != nil {
				t.Fatal(err)
			}
			got, head := make(map[string]any), make(map[string]any)
			parts := strings.Split(token.JWT, ".")
			decode(t, parts[0], &head)
			decode(t, parts[1], &got)
			if want := map[string]any{"alg": "RS256", "typ": "JWT", "kid": token.KeyID}; !reflect.DeepEqual(head, want) {
				t.Errorf("header %v, want %v", head, want)
			}
			if _, err := uuid.Parse(got["jti"].(string)); err != nil {
				t.Errorf("jti: %v", err)
			}
			delete(got, "jti")
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("claims %v, want %v", got, tc.want)
			}
		})
	}
}

func decode(t *testing.T, part string, into any) {
	t.Helper()
	text, err := encoding.DecodeString(part)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Another service has only the published keys, and its own library.
func TestPublishedKeysVerifyTokens(t *testing.T) {
	i := newTestIssuer(t)
	id := &api.WorkloadIdentity{Name: "vault", Audience: []string{"vault.io", "nomadproject.io"}, TTL: time.Hour}
	before := i.issue(t, id)
	if _, err := i.Store.RotateKeys(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	after := i.issue(t, id)
	if before.KeyID == after.KeyID {
		t.Error("the token after the rotation is signed with the former key")
	}
	verifier := newJOSEVerifier(t, i)
	for _, token := range []*state.IdentityToken{before, after} {
		want := jwt.Expected{Issuer: "https://nomad.example", AnyAudience: jwt.Audience{"vault.io"}, Subject: "global:apps:shop:web:server:vault", Time: i.now}
		if err := verifier.verify(token.JWT, want); err != nil {
			t.Errorf("token of key %s: %v", token.KeyID, err)
		}
		want.Time = i.now.Add(time.Hour + jwt.DefaultLeeway + time.Second)
		if err := verifier.verify(token.JWT, want); !errors.Is(err, jwt.ErrExpired) {
			t.Errorf("an expired token: %v", err)
		}
		want.Time, want.AnyAudience = i.now, jwt.Audience{"consul.io"}
		if err := verifier.verify(token.JWT, want); !errors.Is(err, jwt.ErrInvalidAudience) {
			t.Errorf("another audience: %v", err)
		}
		if _, err := i.Authenticate(token.JWT); err != nil {
			t.Errorf("token of key %s: %v", token.KeyID, err)
		}
	}
	if err := i.Store.RemoveKey(t.Context(), before.KeyID, true); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Authenticate(before.JWT); err == nil || i.IsSignedByExistingKey(before) || !i.IsSignedByExistingKey(after) {
		t.Errorf("the token of the removed key is still valid: %v", err)
	}
	if err := newJOSEVerifier(t, i).verify(before.JWT, jwt.Expected{Time: i.now}); !errors.Is(err, jose.ErrJWKSKidNotFound) {
		t.Errorf("the published keys verify the token of the removed key: %v", err)
	}
}

// joseVerifier verifies tokens with the library go-jose.
type joseVerifier struct{ keys jose.JSONWebKeySet }

// newJOSEVerifier reads i's published keys.
func newJOSEVerifier(t *testing.T, i *testIssuer) *joseVerifier {
	t.Helper()
	v := new(joseVerifier)
	set, err := i.KeySet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	published, err := json.Marshal(set)
	if err == nil {
		err = json.Unmarshal(published, &v.keys)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (v *joseVerifier) verify(token string, want jwt.Expected) error {
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		return err
	}
	var claims jwt.Claims
	if err := parsed.Claims(v.keys, &claims); err != nil {
		return err
	}
	return claims.Validate(want)
}

func TestAuthenticate(t *testing.T) {
	i := newTestIssuer(t)
	valid := i.issue(t, defaultIdentity)
	w, err := i.Authenticate(valid.JWT)
	if want := (Workload{"apps", "shop", "web", testAllocID, "server"}); err != nil || *w != want {
		t.Fatalf("workload %v, want %v: %v", w, want, err)
	}
	keyID, key, err := i.Store.SigningKeys().EnsureActiveKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(valid.JWT, ".")
	join := func(head, claims, signature string) string { return head + "." + claims + "." + signature }
	raw := func(text string) string { return encoding.EncodeToString([]byte(text)) }
	signedClaims := func(change func(*Claims)) string {
		var c Claims
		decode(t, parts[1], &c)
		change(&c)
		token, err := signToken(c, keyID, key)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	hmacToken := func() string {
		signed := raw(`{"alg":"HS256","kid":"`+keyID+`"}`) + "." + parts[1]
		mac := hmac.New(sha256.New, x509.MarshalPKCS1PublicKey(&key.PublicKey))
		mac.Write([]byte(signed))
		return signed + "." + encoding.EncodeToString(mac.Sum(nil))
	}
	// withHeader returns the token with another header and a matching valid signature.
	withHeader := func(head string) string {
		signed := raw(head) + "." + parts[1]
		sum := sha256.Sum256([]byte(signed))
		signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		return signed + "." + encoding.EncodeToString(signature)
	}
	if _, err := i.Authenticate(withHeader(`{"alg":"RS256","kid":"` + keyID + `"}`)); err != nil {
		t.Errorf("a token with another valid header: %v", err)
	}
	var claims Claims
	decode(t, parts[1], &claims)
	otherKey, err := signToken(claims, keyID, other)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, token string }{
		{"nothing", ""},
		{"two parts", parts[0] + "." + parts[1]},
		{"four parts", valid.JWT + "." + parts[2]},
		{"no signature", join(parts[0], parts[1], "")},
		{"alg none", join(raw(`{"alg":"none","kid":"`+keyID+`"}`), parts[1], "")},
		{"alg none with the signature", join(raw(`{"alg":"none","kid":"`+keyID+`"}`), parts[1], parts[2])},
		{"HMAC with the public key", hmacToken()},
		{"alg PS256", withHeader(`{"alg":"PS256","kid":"` + keyID + `"}`)},
		{"alg rs256", withHeader(`{"alg":"rs256","kid":"` + keyID + `"}`)},
		{"no alg", withHeader(`{"kid":"` + keyID + `"}`)},
		{"an unknown critical extension", withHeader(`{"alg":"RS256","kid":"` + keyID + `","crit":["x"]}`)},
		{"another key id", withHeader(`{"alg":"RS256","kid":"` + uuid.NewString() + `"}`)},
		{"another key", otherKey},
		{"changed claims", join(parts[0], raw(strings.Replace(string(mustDecode(t, parts[1])), "server", "root", 1)), parts[2])},
		{"padding", valid.JWT + "=="},
		{"a line break", valid.JWT + "\n"},
		{"a long text", strings.Repeat("a", maxTokenSize) + "." + parts[1] + "." + parts[2]},
		{"expired", signedClaims(func(c *Claims) { c.Expiry = i.now.Unix() })},
		{"another audience", signedClaims(func(c *Claims) { c.Audience = Audience{"vault.io"} })},
		{"no audience", signedClaims(func(c *Claims) { c.Audience = nil })},
		{"an unknown allocation", signedClaims(func(c *Claims) { c.AllocID = uuid.NewString() })},
		{"another job", signedClaims(func(c *Claims) { c.JobID = "sho" })},
		{"another namespace", signedClaims(func(c *Claims) { c.Namespace = "default" })},
		{"another task", signedClaims(func(c *Claims) { c.Task = "serve" })},
	} {
		if got, err := i.Authenticate(tc.token); err == nil {
			t.Errorf("%s: authenticated as %v", tc.name, *got)
		}
	}
	if _, err := i.Authenticate(signedClaims(func(c *Claims) { c.Expiry = i.now.Unix() + 1 })); err != nil {
		t.Errorf("a token that expires in a second: %v", err)
	}
	i.now = i.now.Add(-time.Hour)
	if _, err := i.Authenticate(valid.JWT); err != nil {
		t.Errorf("after the clock was set back: %v", err)
	}
	for _, status := range []string{api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost} {
		ended := testAlloc()
		ended.ClientStatus = status
		i.putAlloc(t, ended)
		if _, err := i.Authenticate(valid.JWT); err == nil {
			t.Errorf("a token of an allocation that is %s is valid", status)
		}
	}
}

func mustDecode(t *testing.T, part string) []byte {
	t.Helper()
	text, err := encoding.DecodeString(part)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestRenewalDelay(t *testing.T) {
	i := newTestIssuer(t)
	for _, tc := range []struct {
		name       string
		ttl        time.Duration
		passed     time.Duration
		from, to   time.Duration
		neverRenew bool
	}{
		{"no TTL", 0, 0, 0, 0, true},
		{"an hour", time.Hour, 0, 30 * time.Minute, 33 * time.Minute, false},
		{"an hour, after 20 minutes", time.Hour, 20 * time.Minute, 10 * time.Minute, 13 * time.Minute, false},
		{"an hour, after 40 minutes", time.Hour, 40 * time.Minute, -10 * time.Minute, -7 * time.Minute, false},
		{"an hour, expired", time.Hour, 2 * time.Hour, -90 * time.Minute, -87 * time.Minute, false},
		{"15 seconds", 15 * time.Second, 0, 9 * time.Second, 10 * time.Second, false},
		{"5 seconds", 5 * time.Second, 0, 4 * time.Second, 5 * time.Second, false},
		{"a millisecond", time.Millisecond, 0, 0, time.Second, false},
		{"the clock was set back by 50 seconds", time.Hour, -50 * time.Second, 30 * time.Minute, 34 * time.Minute, false},
		{"the clock was set back by an hour", time.Hour, -time.Hour, 0, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			token := i.issue(t, &api.WorkloadIdentity{Name: "x", TTL: tc.ttl})
			begin := i.now
			defer func() { i.now = begin }()
			i.now = begin.Add(tc.passed)
			got, ok := i.RenewalDelay(token)
			if ok == tc.neverRenew || got < tc.from || got > tc.to {
				t.Errorf("%v, %t; want %v to %v", got, ok, tc.from, tc.to)
			}
		})
	}
}

func TestRecords(t *testing.T) {
	i := newTestIssuer(t)
	if got := i.StoredTokensByIdentity(testAllocID, "server"); got != nil {
		t.Errorf("before the first token: %v", got)
	}
	want := map[string]*state.IdentityToken{"x": i.issue(t, &api.WorkloadIdentity{Name: "x", TTL: time.Hour})}
	gone := uuid.NewString()
	for _, id := range []string{testAllocID, gone} {
		if err := i.PutTokens(t.Context(), id, "server", want); err != nil {
			t.Fatal(err)
		}
	}
	got := i.StoredTokensByIdentity(testAllocID, "server")
	if len(got) != 1 || got["x"].JWT != want["x"].JWT || !got["x"].RenewAt.Equal(want["x"].RenewAt) {
		t.Errorf("tokens %v, want %v", got, want)
	}
	if n, err := i.CountTasksWithTokenSignedBy(want["x"].KeyID); n != 2 || err != nil {
		t.Errorf("%d tasks have tokens of the key, want 2: %v", n, err)
	}
	if err := i.DeleteOrphanedTokens(t.Context()); err != nil || i.StoredTokensByIdentity(gone, "server") != nil || i.StoredTokensByIdentity(testAllocID, "server") == nil {
		t.Errorf("after the removal of orphans: %v, %v, %v", err, i.StoredTokensByIdentity(gone, "server"), i.StoredTokensByIdentity(testAllocID, "server"))
	}
	i.now = i.now.Add(time.Hour)
	if n, err := i.CountTasksWithTokenSignedBy(want["x"].KeyID); n != 0 || err != nil {
		t.Errorf("%d tasks have tokens of the key after they have expired, want 0: %v", n, err)
	}
	if err := i.DeleteTokens(t.Context(), testAllocID, "server"); err != nil || i.StoredTokensByIdentity(testAllocID, "server") != nil {
		t.Errorf("after the removal: %v", err)
	}
}

// No text is a valid token, unless this issuer has signed it.
func FuzzAuthenticate(f *testing.F) {
	i := newTestIssuer(f)
	valid := i.issue(f, defaultIdentity).JWT
	parts := strings.Split(valid, ".")
	f.Add(valid)
	f.Add(parts[0] + "." + parts[1] + ".")
	f.Add(encoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".")
	f.Add(encoding.EncodeToString([]byte(`{"alg":null,"kid":[],"crit":{}}`)) + ".." + parts[2])
	f.Fuzz(func(t *testing.T, token string) {
		if w, err := i.Authenticate(token); err == nil && token != valid {
			t.Errorf("%q authenticates as %v", token, *w)
		}
	})
}

func BenchmarkIssue(b *testing.B) {
	i := newTestIssuer(b)
	for b.Loop() {
		i.issue(b, defaultIdentity)
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	i := newTestIssuer(b)
	token := i.issue(b, defaultIdentity).JWT
	for b.Loop() {
		if _, err := i.Authenticate(token); err != nil {
			b.Fatal(err)
		}
	}
}
