package pointer

import "testing"

func TestValue(t *testing.T) {
	if got := Value(new(3)); got != 3 {
		t.Errorf("the value of a pointer to 3 is %d", got)
	}
	if got := Value[string](nil); got != "" {
		t.Errorf("the value of nil is %q", got)
	}
}
