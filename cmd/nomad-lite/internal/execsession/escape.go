package execsession

import "io"

// escapeReader reads the input that the user types in a session. At the start of a line, the escape character and a dot
// end the session. The escape character typed twice is sent once.
type escapeReader struct {
	input           io.Reader
	escapeChar      byte
	onDetach        func()
	atLineStart     bool   // the next byte starts a line
	afterEscapeChar bool   // the last byte was the escape character
	unreadInput     []byte // bytes read and not yet returned
}

func (e *escapeReader) Read(p []byte) (int, error) {
	for len(e.unreadInput) == 0 {
		typed := make([]byte, len(p))
		n, err := e.input.Read(typed)
		for _, c := range typed[:n] {
			if !e.bufferUnlessInEscapeSequence(c) {
				e.onDetach()
				return 0, io.EOF
			}
		}
		if err != nil && len(e.unreadInput) == 0 {
			return 0, err
		}
	}
	n := copy(p, e.unreadInput)
	e.unreadInput = e.unreadInput[n:]
	return n, nil
}

// bufferUnlessInEscapeSequence appends c to unreadInput unless c belongs to an escape sequence. It returns false if c
// completes the sequence that ends the session.
func (e *escapeReader) bufferUnlessInEscapeSequence(c byte) (sessionContinues bool) {
	switch {
	case e.afterEscapeChar && c == '.':
		return false
	case e.afterEscapeChar:
		e.afterEscapeChar = false
		e.unreadInput = append(e.unreadInput, e.escapeChar)
		if c == e.escapeChar {
			e.atLineStart = false
			return true
		}
	case e.atLineStart && c == e.escapeChar:
		e.afterEscapeChar = true
		return true
	}
	e.atLineStart = c == '\r' || c == '\n'
	e.unreadInput = append(e.unreadInput, c)
	return true
}
