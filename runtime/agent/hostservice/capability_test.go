package hostservice

import (
	"errors"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

func TestCapabilityToken(t *testing.T) {
	key, other := CapabilityTokenKey("one key"), CapabilityTokenKey("another")
	made := key.NewCapabilityToken("alloc", "task", "stamp")
	if got, err := key.VerifyToken(made); err != nil || got != (tokenClaims{"alloc", "task", "stamp"}) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := CapabilityTokenKey("one key").VerifyToken(key.NewCapabilityToken("alloc", "", "stamp")); err != nil || got != (tokenClaims{"alloc", "", "stamp"}) {
		t.Errorf("of an allocation, under another agent: %+v, %v", got, err)
	}
	for what, capability := range map[string]string{
		"none": "", "no base64": "!", "short": "AAAA", "of another key": other.NewCapabilityToken("alloc", "task", "stamp"),
		"changed": made[:len(made)-1] + "A", "with more names": key.NewCapabilityToken("alloc", "task", "stamp\x00x"),
	} {
		if got, err := key.VerifyToken(capability); !errors.Is(err, hook.ErrPermissionDenied) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
}

func FuzzVerifyToken(f *testing.F) {
	key := CapabilityTokenKey("key")
	f.Add(key.NewCapabilityToken("alloc", "task", "hook"))
	f.Fuzz(func(t *testing.T, capability string) {
		if b, err := key.VerifyToken(capability); err == nil && b != (tokenClaims{"alloc", "task", "hook"}) {
			t.Errorf("%q is good for %+v", capability, b)
		}
	})
}
