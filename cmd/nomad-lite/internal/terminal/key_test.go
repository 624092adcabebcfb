package terminal

import (
	"os"
	"slices"
	"testing"
)

func TestDecodeKey(t *testing.T) {
	for input, want := range map[string][]Key{
		"jq":                   {'j', 'q'},
		"\r\x03\x7f":           {KeyEnter, KeyCtrlC, KeyBackspace},
		"\x1b[A\x1b[B\x1bOA":   {KeyUp, KeyDown, KeyUp},
		"\x1b[5~\x1b[6~":       {KeyPageUp, KeyPageDown},
		"\x1b[1;5A":            {KeyUp},
		"\x1b[3~x":             {KeyUnknown, 'x'},
		"\x1b":                 {KeyEscape},
		"\x1bq":                {KeyEscape, 'q'},
		"日é":                   {'日', 'é'},
		"\xff":                 {KeyUnknown},
		"\x1b[12":              {KeyUnknown},
		"\x1b[1\x1b[A":         {KeyUnknown, KeyUp},
		"\x1b[H\x1b[4~\x1b[7~": {KeyHome, KeyEnd, KeyHome},
	} {
		var got []Key
		for rest := []byte(input); len(rest) > 0; {
			key, n := DecodeKey(rest, true)
			if n == 0 {
				t.Fatalf("%q: no progress at %q", input, rest)
			}
			got, rest = append(got, key), rest[n:]
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", input, got, want)
		}
	}
	for _, start := range []string{"\x1b", "\x1b[", "\x1b[1;", "\xe6\x97"} {
		if _, n := DecodeKey([]byte(start), false); n != 0 {
			t.Errorf("%q is complete with %d bytes", start, n)
		}
	}
}

func FuzzDecodeKey(f *testing.F) {
	f.Add([]byte("\x1b[1;5A\x1bOPq"))
	f.Fuzz(func(t *testing.T, input []byte) {
		for len(input) > 0 {
			_, n := DecodeKey(input, true)
			if n <= 0 || n > len(input) {
				t.Fatalf("%q: size %d", input, n)
			}
			input = input[n:]
		}
	})
}

// TestClosedInputTakesNoKey checks that a reader that was closed leaves input to the next reader.
func TestClosedInputTakesNoKey(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	first, err := NewInterruptibleInput(r)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		_, err := first.Read(make([]byte, 8))
		read <- err
	}()
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if err := <-read; err == nil {
		t.Error("the closed reader has read input")
	}
	if _, err := w.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	second, err := NewInterruptibleInput(r)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	got := make([]byte, 8)
	if n, err := second.Read(got); err != nil || string(got[:n]) != "x" {
		t.Errorf("got %q and %v, want x", got[:n], err)
	}
}
