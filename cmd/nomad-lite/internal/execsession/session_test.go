//go:build unix

package execsession

import (
	"testing"

	"github.com/creack/pty"
	"github.com/muesli/cancelreader"
)

// TestClosedInputTakesNoKey closes inputs while they are read. The next key belongs to the next reader of the terminal.
func TestClosedInputTakesNoKey(t *testing.T) {
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer tty.Close()
	key := make([]byte, 8)
	for range 100 {
		reader, err := cancelreader.NewReader(tty)
		if err != nil {
			t.Fatal(err)
		}
		input := &interruptibleInput{CancelReader: reader}
		ended := make(chan error)
		go func() {
			_, err := input.Read(make([]byte, 8))
			ended <- err
		}()
		if err := input.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err == nil {
			t.Fatal("a closed input was read")
		}
		if _, err := master.WriteString("x\n"); err != nil {
			t.Fatal(err)
		}
		if n, err := tty.Read(key); err != nil || string(key[:n]) != "x\n" {
			t.Fatalf("the next reader got %q, %v", key[:n], err)
		}
	}
}
