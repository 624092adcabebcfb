package logfile

import "testing"

func TestIndexInvertsName(t *testing.T) {
	prefix := Prefix("web", "stdout")
	for _, index := range []int64{0, 7, 10, 999_999_999_999_999} {
		name := Name(prefix, index)
		if got, ok := Index(name, prefix); got != index || !ok {
			t.Errorf("Index(%q) = %d, %v; want %d", name, got, ok, index)
		}
	}
	for _, name := range []string{"", "web.stdout", "web.stdout.", "web.stderr.0", "web.stdout.01", "web.stdout.-1", "web.stdout.+1", "web.stdout.1x", "web.stdout.1000000000000000", "x.web.stdout.0"} {
		if index, ok := Index(name, prefix); ok {
			t.Errorf("Index(%q) = %d, want none", name, index)
		}
	}
}
