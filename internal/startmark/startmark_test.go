//go:build linux

package startmark

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A stage executes the program only after the plugin has recorded the fork, also if the plugin has died.
func TestWaitForRelease(t *testing.T) {
	for name, test := range map[string]struct {
		mark *Mark  // nil means that there is none
		want string // part of the error; "" means none
	}{
		"a recorded fork":             {&Mark{Forked: true, Data: []byte("x")}, ""},
		"a fork that is not recorded": {&Mark{Data: []byte("x")}, "before the start of the task was recorded"},
		"no mark":                     {nil, os.ErrNotExist.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			reader, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			mark, err := os.Create(filepath.Join(t.TempDir(), "mark"))
			if err != nil {
				t.Fatal(err)
			}
			defer mark.Close()
			result := make(chan error, 1)
			go func() { result <- WaitForRelease(reader, mark) }()
			if test.mark != nil {
				if err := test.mark.WriteToFile(mark); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case err := <-result:
				t.Fatalf("returned before the release: %v", err)
			default:
			}
			writer.Close()
			if err := <-result; (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
