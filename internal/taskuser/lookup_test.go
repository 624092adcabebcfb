package taskuser

import (
	"errors"
	"os/user"
	"testing"
)

// The error names an unknown user or group once.
func TestLookupOfUnknownName(t *testing.T) {
	for name, want := range map[string]string{
		"ghost-of-test":      "unknown user ghost-of-test",
		"root:ghost-of-test": "unknown group ghost-of-test",
	} {
		_, err := Lookup(name)
		if err == nil || err.Error() != want || errors.As(err, new(user.UnknownUserError)) == errors.As(err, new(user.UnknownGroupError)) {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
}
