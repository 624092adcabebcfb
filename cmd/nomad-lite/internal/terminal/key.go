package terminal

import (
	"unicode"
	"unicode/utf8"
)

// Key is a key of the terminal: a Unicode character, which can be a control character, or one of the keys without a
// character.
type Key rune

// These keys have a control character.
const (
	KeyCtrlC     Key = 0x03
	KeyBackspace Key = 0x7f
	KeyCtrlH     Key = 0x08
	KeyCtrlL     Key = 0x0c
	KeyEnter     Key = '\r'
	KeyCtrlU     Key = 0x15
	KeyCtrlZ     Key = 0x1a
	KeyEscape    Key = 0x1b
)

// These keys have no character.
const (
	KeyUnknown Key = unicode.MaxRune + 1 + iota
	KeyUp
	KeyDown
	KeyRight
	KeyLeft
	KeyHome
	KeyEnd
	KeyPageUp
	KeyPageDown
)

// keySequences maps the final byte of a key's escape sequence or, for sequences that end in ~, their number and the ~,
// to the key.
var keySequences = map[string]Key{
	"A": KeyUp, "B": KeyDown, "C": KeyRight, "D": KeyLeft, "H": KeyHome, "F": KeyEnd,
	"1~": KeyHome, "7~": KeyHome, "4~": KeyEnd, "8~": KeyEnd, "5~": KeyPageUp, "6~": KeyPageDown,
}

// DecodeKey returns the first key of the input and the number of its bytes. If the input is only the start of a key's
// sequence, size is 0. If noMoreInput is set, such input is the escape key or an unknown key.
func DecodeKey(input []byte, noMoreInput bool) (key Key, size int) {
	switch {
	case len(input) == 0:
		return KeyUnknown, 0
	case input[0] == '\x1b':
		return decodeKeySequence(input, noMoreInput)
	case !utf8.FullRune(input) && !noMoreInput:
		return KeyUnknown, 0
	}
	r, size := utf8.DecodeRune(input)
	if r == utf8.RuneError && size == 1 {
		return KeyUnknown, 1
	}
	return Key(r), size
}

func decodeKeySequence(input []byte, noMoreInput bool) (key Key, size int) {
	if len(input) == 1 && !noMoreInput {
		return KeyUnknown, 0
	}
	if len(input) == 1 || input[1] != '[' && input[1] != 'O' {
		return KeyEscape, 1
	}
	for i, c := range input[2:] {
		switch {
		case c >= 0x40 && c <= 0x7e:
			name := string(c)
			if c == '~' {
				name = leadingDigits(input[2:2+i]) + name
			}
			if key, known := keySequences[name]; known {
				return key, i + 3
			}
			return KeyUnknown, i + 3
		case c < 0x20 || c > 0x7e:
			return KeyUnknown, i + 2 // another character interrupts the sequence
		}
	}
	if noMoreInput {
		return KeyUnknown, len(input)
	}
	return KeyUnknown, 0
}

// leadingDigits returns the first parameter of an escape sequence. The second one, if there is one, encodes the
// modifier keys.
func leadingDigits(parameters []byte) string {
	n := 0
	for n < len(parameters) && parameters[n] >= '0' && parameters[n] <= '9' {
		n++
	}
	return string(parameters[:n])
}
