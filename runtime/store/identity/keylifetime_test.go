package identity

import (
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func TestKeysAreReplacedAndRemovedAfterTheirTime(t *testing.T) {
	i := newTestIssuer(t)
	start := time.Now()
	check := func(after time.Duration, l KeyLifetime) (ids []string) {
		t.Helper()
		i.now = start.Add(after)
		if err := i.replaceAndRemoveKeysOnce(t.Context(), l, hclog.NewNullLogger()); err != nil {
			t.Fatal(err)
		}
		keys, err := i.Store.Keys()
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			ids = append(ids, k.KeyID)
		}
		if keys[len(keys)-1].State != api.RootKeyStateActive {
			t.Error("the newest key is not the active one")
		}
		return ids
	}
	lifetime := KeyLifetime{RotateAfter: 24 * time.Hour}

	i.now = start
	token := i.issue(t, &api.WorkloadIdentity{Name: "x", Audience: defaultIdentity.Audience, TTL: 48 * time.Hour})
	if err := i.PutTokens(t.Context(), testAllocID, "server", map[string]*state.IdentityToken{"x": token}); err != nil {
		t.Fatal(err)
	}
	first := check(23*time.Hour, lifetime)
	if len(first) != 1 || first[0] != token.KeyID {
		t.Fatalf("before its time: keys %v", first)
	}
	second := check(25*time.Hour, lifetime)
	if len(second) != 2 || second[0] != first[0] {
		t.Fatalf("at its time: keys %v, want %v and another", second, first)
	}
	if _, err := i.Authenticate(token.JWT); err != nil {
		t.Errorf("the token of the replaced key: %v", err)
	}
	if third := check(47*time.Hour, KeyLifetime{RemoveAfter: time.Hour}); !slices.Equal(third, second) {
		t.Errorf("while a token is valid: keys %v, want %v", third, second)
	}
	if fourth := check(49*time.Hour, KeyLifetime{RemoveAfter: 50 * time.Hour}); !slices.Equal(fourth, second) {
		t.Errorf("before the time of its removal: keys %v, want %v", fourth, second)
	}
	if fifth := check(49*time.Hour, KeyLifetime{RemoveAfter: time.Hour}); !slices.Equal(fifth, second[1:]) {
		t.Errorf("after the token has expired: keys %v, want %v", fifth, second[1:])
	}
}
